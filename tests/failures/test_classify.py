"""Classification over the whole corpus: texts, types, codes, counters, phases and exits."""

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, Dataset

from autofit.core.errors import WorkloadError
from autofit.core.outcome import Status
from autofit.failures.classify import classify, failure_texts
from autofit.failures.evidence import ErrorLink, Evidence, collect, scrub
from autofit.probing.watchdog import Overdue
from tests.failures.raising import OOM_TEXT, oom, raised

CORPUS = json.loads((Path(__file__).parents[1] / "data" / "failure_corpus.json").read_text(encoding="utf-8"))
REFERENCE = [case for case in CORPUS if case["group"] == "reference"]
NEGATIVE = [case for case in CORPUS if case["group"] == "negative"]
OUT_OF = (Status.OUT_OF_MEMORY, Status.OUT_OF_HOST_MEMORY)
BASES = {
    "torch.OutOfMemoryError": ("RuntimeError", "Exception"),
    "torch.AcceleratorError": ("RuntimeError", "Exception"),
    "torch._inductor.exc.InductorError": ("torch._dynamo.exc.BackendCompilerFailed", "RuntimeError"),
    "KeyError": ("LookupError", "Exception"),
    "NotImplementedError": ("RuntimeError", "Exception"),
    "my.pool.PoolError": ("RuntimeError", "Exception"),
}


def link(type_name: str = "RuntimeError", text: str = "", code: int | None = None) -> ErrorLink:
    return ErrorLink(type_name, (type_name, *BASES.get(type_name, ("Exception",))), text, code)


def evidence(*links: ErrorLink, **fields: Any) -> Evidence:
    return Evidence(tuple(links), **fields)


def test_the_text_of_an_accelerators_allocator_alone_is_the_users_error_on_the_cpu() -> None:
    found = evidence(link("RuntimeError", "CUDA out of memory. Tried to allocate 2.00 GiB"))
    assert classify(found).status is Status.OUT_OF_MEMORY
    assert classify(found, device_is_host=True).status is Status.USER_ERROR
    typed = evidence(link("torch.OutOfMemoryError", "CUDA out of memory."))
    assert classify(typed, device_is_host=True).status is Status.OUT_OF_MEMORY
    host = evidence(link("RuntimeError", "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes."))
    assert classify(host, device_is_host=True).status is Status.OUT_OF_MEMORY


# --- the corpus ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case["name"])
@pytest.mark.fault("F05")
def test_every_known_text_has_its_status(case: dict[str, str]) -> None:
    verdict = classify(evidence(link(case["type"], case["text"])))
    assert verdict.status == case["status"]
    assert verdict.reason.startswith(case["type"])


@pytest.mark.parametrize("case", REFERENCE, ids=lambda case: case["name"])
@pytest.mark.fault("F05")
def test_a_text_suffices_without_its_class(case: dict[str, str]) -> None:
    assert classify(evidence(link("RuntimeError", case["text"]))).status == case["status"]


@pytest.mark.parametrize("case", NEGATIVE, ids=lambda case: case["name"])
@pytest.mark.fault("F06")
def test_look_alikes_are_never_an_out_of_memory(case: dict[str, str]) -> None:
    for device_is_host in (False, True):
        assert classify(evidence(link(case["type"], case["text"])), device_is_host).status not in OUT_OF


@pytest.mark.parametrize("case", REFERENCE, ids=lambda case: case["name"])
@pytest.mark.fault("F06")
def test_back_end_texts_in_a_users_value_error_mean_nothing(case: dict[str, str]) -> None:
    assert classify(evidence(link("ValueError", case["text"]))).status is Status.USER_ERROR


def test_the_reference_is_complete_and_its_class_alone_or_one_substring_would_miss_most() -> None:
    assert len(REFERENCE) == 39
    by_class = [case for case in REFERENCE if case["type"] == "torch.OutOfMemoryError"]
    by_words = [case for case in REFERENCE if "CUDA" in case["text"] and "out of memory" in case["text"]]
    assert len(by_class) <= 3
    assert len(by_words) <= 8
    assert not [case for case in REFERENCE if case["status"] == Status.USER_ERROR]


def test_every_entry_is_hit_by_a_sample_and_names_its_source() -> None:
    texts = [case["text"] for case in CORPUS]
    for entry in failure_texts():
        assert any(entry.pattern.search(text) for text in texts), entry.name
        assert entry.origin, entry.name
        assert entry.seen_in, entry.name
    assert len({entry.name for entry in failure_texts()}) == len(failure_texts())
    assert {entry.confirmed for entry in failure_texts()} == {True, False}


def test_the_module_and_its_corpus_load_without_torch() -> None:
    code = "import sys, autofit.failures.classify as f; f.failure_texts(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- type, code, counters, phase ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "status"),
    [(2, Status.OUT_OF_MEMORY), (701, Status.LAUNCH_LIMIT), (98, Status.USER_ERROR)]
    + [(code, Status.POISONED) for code in (214, 700, 702, 710, 714, 715, 716, 717, 718, 719)],
)
def test_the_code_of_an_accelerator_error_decides(code: int, status: Status) -> None:
    assert classify(evidence(link("torch.AcceleratorError", "CUDA error: something", code))).status is status


def test_a_class_name_alone_does_not_make_an_out_of_memory() -> None:
    class OutOfMemoryError(Exception):
        pass

    assert classify(collect(OutOfMemoryError("slots"))).status is Status.USER_ERROR


def test_an_error_of_autofit_says_by_itself_what_was_found() -> None:
    try:
        raise WorkloadError("loss_fn returned an int; expected a scalar tensor")
    except WorkloadError as error:
        failure = classify(collect(error))
    assert failure.status is Status.USER_ERROR
    assert failure.reason.startswith("loss_fn returned an int; expected a scalar tensor")


def test_an_end_by_the_watchdog_is_told_without_the_name_of_its_class() -> None:
    try:
        raise Overdue("the time budget of 30 s ran out: 'step' had been running for 1 s")
    except Overdue as error:
        failure = classify(collect(error))
    assert failure.status is Status.TIMED_OUT
    assert failure.reason == "the time budget of 30 s ran out: 'step' had been running for 1 s"


def test_memory_error_is_the_devices_when_the_device_is_the_host() -> None:
    for error in (MemoryError(), raised(lambda: torch.empty(1 << 50, dtype=torch.uint8))):
        assert classify(collect(error)).status is Status.OUT_OF_HOST_MEMORY
        assert classify(collect(error), device_is_host=True).status is Status.OUT_OF_MEMORY


def test_onednn_stays_ambiguous_on_the_cpu() -> None:
    found = evidence(link("RuntimeError", "could not create a primitive"))
    assert classify(found, device_is_host=True).status is Status.AMBIGUOUS


def test_torchs_own_errors_on_this_machine() -> None:
    assert classify(collect(raised(lambda: torch.empty(1 << 40, 1 << 40)))).status is Status.USER_ERROR
    verdict = classify(collect(raised(lambda: torch.zeros(4, 3) @ torch.zeros(4, 3))))
    assert verdict.status is Status.USER_ERROR
    assert "shapes cannot be multiplied" in verdict.reason


@pytest.mark.fault("F08")
def test_swallowed_out_of_memory_is_seen_by_the_counter() -> None:
    found = evidence(link("ValueError", "nothing came back"), new_ooms=2)
    verdict = classify(found)
    assert verdict.status is Status.OUT_OF_MEMORY
    assert "ran out of memory 2 times" in verdict.reason


def test_a_poisoned_device_wins_over_memory() -> None:
    poison = link("RuntimeError", "CUDA error: device-side assert triggered")
    assert classify(evidence(link("torch.OutOfMemoryError", OOM_TEXT), poison)).status is Status.POISONED
    assert classify(evidence(poison, new_ooms=1)).status is Status.POISONED


def test_memory_wins_over_the_errors_around_it() -> None:
    memory = link("RuntimeError", "CUDA error: out of memory")
    for other in (
        "cuDNN error: CUDNN_STATUS_NOT_SUPPORTED.",
        "shapes cannot be multiplied",
        "out of resource: x",
    ):
        for chain in ((memory, link("RuntimeError", other)), (link("RuntimeError", other), memory)):
            assert classify(evidence(*chain)).status is Status.OUT_OF_MEMORY


def test_an_interrupt_wins_over_everything() -> None:
    def interrupted() -> None:
        try:
            oom()
        except RuntimeError as error:
            raise KeyboardInterrupt from error

    assert classify(collect(raised(interrupted), new_ooms=1)).status is Status.INTERRUPTED


def test_the_phase_tells_the_users_data_from_the_users_model() -> None:
    error = raised(lambda: int("x"))
    assert classify(collect(error)).status is Status.USER_ERROR
    assert classify(collect(error, phase="fetch")).status is Status.DATA_ERROR
    prepared = classify(collect(error, phase="prepare"))
    assert prepared.status is Status.USER_ERROR
    assert prepared.reason.startswith("while preparing: ")
    assert classify(collect(raised(oom), phase="prepare")).status is Status.OUT_OF_MEMORY
    assert classify(collect(raised(oom), phase="fetch")).status is Status.OUT_OF_MEMORY


# --- the exit of a process ----------------------------------------------------------------------------


@pytest.mark.parametrize("fields", [{"exit_signal": 9}, {"exit_code": -9}, {"exit_code": 137}])
@pytest.mark.fault("F20")
def test_sigkill_may_be_the_hosts_out_of_memory_killer(fields: dict[str, int]) -> None:
    verdict = classify(evidence(**fields))
    assert verdict.status is Status.CRASHED
    assert "SIGKILL" in verdict.reason
    assert "out-of-memory killer" in verdict.reason


@pytest.mark.parametrize("name", ["SIGSEGV", "SIGABRT", "SIGBUS", "SIGTERM"])
@pytest.mark.fault("F21")
def test_other_signals_are_named(name: str) -> None:
    verdict = classify(evidence(exit_signal=int(signal.Signals[name])))
    assert verdict.status is Status.CRASHED
    assert name in verdict.reason


def test_other_exits() -> None:
    assert classify(evidence(exit_signal=int(signal.SIGINT))).status is Status.INTERRUPTED
    for fields in ({}, {"exit_code": 0}, {"exit_code": 3}, {"exit_signal": 9999}):
        verdict = classify(evidence(**fields))
        assert verdict.status is Status.CRASHED
        assert verdict.reason
    # What the child reported before it died is what became of the plan.
    assert classify(evidence(link("torch.OutOfMemoryError", OOM_TEXT), exit_signal=11)).status is Status.OUT_OF_MEMORY


# --- the loader ---------------------------------------------------------------------------------------


class Items(Dataset[torch.Tensor]):
    def __init__(self, fail: Callable[[], None]) -> None:
        self.fail = fail

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        self.fail()
        return torch.zeros(2)


def bad_item() -> None:
    raise RuntimeError("no label")  # CUDA out of memory, as a source line in the traceback may well say


class TwoArguments(Exception):
    def __init__(self, name: str, size: int) -> None:
        super().__init__(f"{name} {size}")


def unbuildable() -> None:
    raise TwoArguments("label", 3)


def die() -> None:
    signal.raise_signal(signal.SIGKILL)


@pytest.mark.parametrize(
    ("fail", "status"),
    [
        (oom, Status.OUT_OF_MEMORY),
        (lambda: torch.empty(1 << 50, dtype=torch.uint8), Status.OUT_OF_HOST_MEMORY),
        (bad_item, Status.DATA_ERROR),
        (unbuildable, Status.DATA_ERROR),
        (die, Status.WORKER_LOST),
    ],
)
@pytest.mark.fault("F07", "F18")
def test_what_a_loader_worker_raises(fail: Callable[[], None], status: Status) -> None:
    loader = DataLoader(Items(fail), batch_size=2, num_workers=1)
    error = raised(lambda: list(loader))
    found = collect(error, phase="fetch")
    scrub(error)  # the iterator goes with the frames, and its worker with it
    assert classify(found).status is status
    if fail is not die:  # the worker's wrapper tells it from the model's code even without the phase
        assert classify(Evidence(found.chain)).status is status


@pytest.mark.parametrize("error", [ConnectionResetError(104, "reset by peer"), BrokenPipeError(32, "Broken pipe")])
@pytest.mark.fault("F18")
def test_a_broken_pipe_in_the_loader_is_a_lost_worker(error: OSError) -> None:
    assert classify(collect(error, phase="fetch")).status is Status.WORKER_LOST
    assert classify(collect(error)).status is Status.USER_ERROR
    wrapped = ConnectionResetError("Caught ConnectionResetError in DataLoader worker process 0.\nOriginal Traceback")
    assert classify(collect(wrapped, phase="fetch")).status is Status.DATA_ERROR


# --- random evidence ----------------------------------------------------------------------------------

NAMES = st.sampled_from([*BASES, "RuntimeError", "ValueError", "MemoryError", "KeyboardInterrupt", "OSError", ""])
PIECES = st.sampled_from([case["text"] for case in CORPUS] + ["Traceback (most recent call last)", "\x1b[31m"])
TEXTS = st.one_of(st.text(), PIECES, st.tuples(PIECES, st.text(), PIECES).map("\n".join))
CODES = st.none() | st.integers(-5, 1000)
LINKS = st.builds(ErrorLink, NAMES, st.lists(NAMES).map(tuple), TEXTS, CODES)
EVIDENCE = st.builds(
    Evidence,
    st.lists(LINKS, max_size=5).map(tuple),
    phase=st.none() | st.sampled_from(["prepare", "fetch", "backward"]) | st.text(),
    new_ooms=st.integers(0, 3),
    exit_signal=st.none() | st.integers(-1, 100),
    exit_code=st.none() | st.integers(-300, 300),
    traceback_text=st.text() | st.just('  File "a\\b.py", line 3, in f\n'),
)


@settings(max_examples=200, deadline=None)
@given(EVIDENCE, st.booleans())
def test_any_evidence_gets_a_verdict_that_can_be_shown(found: Evidence, device_is_host: bool) -> None:
    verdict = classify(found, device_is_host)
    assert verdict.reason
    assert verdict.reason.isprintable()
    assert len(verdict.reason) < 1000
    assert not (device_is_host and verdict.status is Status.OUT_OF_HOST_MEMORY)
    if verdict.status is Status.USER_ERROR:
        assert not any("torch.OutOfMemoryError" in each.bases for each in found.chain)


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.sampled_from([case for case in NEGATIVE if case["type"] != "torch.OutOfMemoryError"]), min_size=1),
    st.sampled_from([None, "prepare", "fetch", "forward"]),
)
@pytest.mark.fault("F06")
def test_no_chain_of_look_alikes_is_an_out_of_memory(cases: list[dict[str, str]], phase: str | None) -> None:
    chain = [link(case["type"], case["text"]) for case in cases]
    assert classify(evidence(*chain, phase=phase)).status not in OUT_OF
