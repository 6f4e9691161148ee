"""A remote bench survives what its children do, and proves under a limit that is real."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autofit.chips import StandIn
from autofit.core.briefing import Briefing, Examiner, Options
from autofit.core.budget import Budget, Clock
from autofit.core.environment import Environment
from autofit.core.errors import (
    AutofitError,
    BudgetSpent,
    RestoreError,
    SpaceError,
    Untraceable,
    UserCodeError,
    WorkloadError,
)
from autofit.core.knob import Knob
from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.space import SpaceFacts
from autofit.core.trial import Purpose
from autofit.gates.verdict import Checked, GateVerdict
from autofit.memory.trace import Kind, Mark, Tensors, Trace
from autofit.probing.remote.bench import RemoteBench, Target
from autofit.probing.remote.child import Deadlines
from tests.probing.remote.fake_worker import install, is_alive, open_descriptors, session

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

TARGETS = Path(__file__).parents[1] / "targets.py"
QUICK = Deadlines(first_s=60.0, progress_s=0.5, total_s=60.0, grace_s=10.0, exit_s=30.0)
"""Short only where a child that hangs is waited for: what a child does in time may take long on a busy machine."""
PLAN = Plan(values={"micro_batch_size": 8, "accumulation_steps": 1})
BRIEFING = Briefing(
    space=SpaceFacts(knobs=(), sizes=(8,), global_batch_size=None, baseline=PLAN),
    environment=Environment(workload="a-b", device_type="cuda", device_name="Test", capacity_bytes=2**34),
    budget=Budget(memory_bytes=12345, memory_note="what was available then"),
    enforced=False,
)
OPENS = """
with open(environment["REQUESTS"], "a") as file:
    limited = "MALLOC_MMAP_THRESHOLD_" in environment
    print(json.dumps(dict(request, pid=os.getpgrp(), limited=limited)), file=file)
if request["do"] == "open":
    say("briefing", briefing=json.loads(environment["BRIEFING"]))
    continue
"""
FAILS = "say('outcome', outcome={'status': 'user error', 'reason': 'no'})"
Open = Callable[..., RemoteBench]


class Log:
    """What the fake workers were asked."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def requests(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.path.read_text().splitlines()] if self.path.exists() else []

    @property
    def pids(self) -> list[int]:
        return list(dict.fromkeys(request["pid"] for request in self.requests))


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setenv("REQUESTS", str(tmp_path / "requests"))
    return Log(tmp_path / "requests")


@pytest.fixture
def opened(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> Iterator[Open]:
    """Opens a bench whose children do as told; what is left open is ended."""
    made: list[RemoteBench] = []

    def open_bench(behaviour: str, briefing: Briefing = BRIEFING, prefix: str = OPENS, **options: Any) -> RemoteBench:
        monkeypatch.setenv("BRIEFING", briefing.model_dump_json())
        install(tmp_path, prefix + behaviour, monkeypatch)
        target = options.pop("target", Target("train.py:make", {"depth": 3}, {"mode": None}, "cuda:1"))
        made.append(RemoteBench(target, deadlines=QUICK, **options))
        return made[-1]

    yield open_bench
    for bench in made:
        bench.__exit__(ValueError, ValueError(), None)
    assert [session(pid) for pid in log.pids if session(pid)] == []


def on_cpu() -> Briefing:
    return BRIEFING.model_copy(update={"environment": BRIEFING.environment.model_copy(update={"device_type": "cpu"})})


def test_the_request_says_all_that_the_caller_said(opened: Open, log: Log) -> None:
    options = Options(memory_budget=0.5, numerics="exact", strategies=("batching",), seed=4)
    bench = opened(FAILS, target=Target("train.py:make", {"depth": 3}, {"mode": "inference"}, "cuda:1", options))
    assert bench.briefing == BRIEFING
    bench.evaluate(PLAN, Purpose.BLOCK)
    first, second = log.requests
    expected = {
        "target": "train.py:make",
        "arguments": {"depth": 3},
        "overrides": {"mode": "inference"},
        "device": "cuda:1",
    }
    assert {name: first[name] for name in expected} == expected
    sent = Options.model_validate(first["options"])
    assert sent == options.model_copy(update={"own_process": True})
    assert (second["do"], second["purpose"], second["plan"]) == ("evaluate", "block", PLAN.model_dump(mode="json"))


def test_a_child_that_stands_in_for_a_device_sees_none(opened: Open, log: Log) -> None:
    hiding = OPENS.replace("limited=limited", "seen=environment.get('CUDA_VISIBLE_DEVICES', 'all'), limited=limited")
    opened(FAILS, prefix=hiding)
    stand_in = StandIn(name="Test Card", capability=(9, 0))
    opened(FAILS, prefix=hiding, target=Target("train.py:make", stand_in=stand_in))
    probing, tracing = log.requests
    assert (probing["stand_in"], probing["seen"]) == (None, os.environ.get("CUDA_VISIBLE_DEVICES", "all"))
    assert (StandIn.model_validate(tracing["stand_in"]), tracing["seen"]) == (stand_in, "")


def test_one_child_serves_many_probes(opened: Open, log: Log) -> None:
    bench = opened(FAILS)
    for _ in range(5):
        assert bench.evaluate(PLAN, Purpose.PROBE).status is Status.USER_ERROR
    assert len(log.pids) == 1


def test_a_child_is_replaced_after_so_many_probes(opened: Open, log: Log) -> None:
    bench = opened(FAILS, probes_per_child=2)
    for _ in range(5):
        bench.evaluate(PLAN, Purpose.PROBE)
    assert len(log.pids) == 3
    assert [session(pid) for pid in log.pids[:-1]] == [[], []]


@pytest.mark.parametrize("status", ["poisoned", "timed out", "crashed", "ambiguous", "loader worker lost"])
@pytest.mark.fault("F11", "F14")
def test_a_child_that_is_not_to_be_trusted_is_replaced(opened: Open, log: Log, status: str) -> None:
    bench = opened(f"say('outcome', outcome={{'status': {status!r}, 'reason': 'r'}})")
    assert bench.evaluate(PLAN, Purpose.PROBE).status == status
    bench.evaluate(PLAN, Purpose.PROBE)
    assert len(log.pids) == 2


@pytest.mark.fault("F12")
def test_a_child_in_which_two_runs_left_memory_behind_is_replaced(opened: Open, log: Log) -> None:
    bench = opened("say('outcome', outcome={'status': 'user error', 'reason': 'r', 'leaked': '5 GiB stayed'})")
    for children in (1, 1, 2, 2, 3):  # what only one run leaves behind is a table that is made once
        assert bench.evaluate(PLAN, Purpose.PROBE).leaked == "5 GiB stayed"
        assert len(log.pids) == children


@pytest.mark.parametrize(
    ("behaviour", "status"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", Status.CRASHED),
        ("os.kill(os.getpid(), signal.SIGINT)", Status.INTERRUPTED),
        ("say('beat', phase='step'); time.sleep(100)", Status.TIMED_OUT),
        ("os.write(write, b'garbage\\n'); time.sleep(100)", Status.CRASHED),
        ("say('outcome', outcome={'status': 'splendid'}); time.sleep(100)", Status.CRASHED),
        ("say('outcome'); time.sleep(100)", Status.CRASHED),
    ],
)
@pytest.mark.fault("F15", "F20", "F23")
def test_a_child_that_ends_costs_one_probe(opened: Open, log: Log, behaviour: str, status: Status) -> None:
    bench = opened(f"if request['plan']['values']['micro_batch_size'] == 8:\n    {behaviour}\n{FAILS}")
    other = PLAN.replace(micro_batch_size=4)
    assert bench.evaluate(other, Purpose.PROBE).status is Status.USER_ERROR
    assert bench.evaluate(PLAN, Purpose.PROBE).status is status
    assert bench.evaluate(other, Purpose.PROBE).status is Status.USER_ERROR
    assert len(log.pids) == 2


def test_the_first_budget_holds_for_every_later_child(opened: Open, log: Log) -> None:
    bench = opened(FAILS, probes_per_child=1)
    bench.evaluate(PLAN, Purpose.PROBE)
    bench.evaluate(PLAN, Purpose.PROBE)
    opens = [request["options"] for request in log.requests if request["do"] == "open"]
    assert [options.get("memory_budget") for options in opens] == [None, 12345]
    assert [options.get("resident_bytes") for options in opens] == [None, 0]  # they are taken off once


def test_a_target_that_gives_another_workload_the_next_time_is_refused(
    opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = opened(FAILS, probes_per_child=1)
    bench.evaluate(PLAN, Purpose.PROBE)
    other = BRIEFING.environment.model_copy(update={"workload": "c-d"})
    monkeypatch.setenv("BRIEFING", BRIEFING.model_copy(update={"environment": other}).model_dump_json())
    with pytest.raises(WorkloadError, match=r"a different workload when .* \(signature c-d, before a-b\)"):
        bench.evaluate(PLAN, Purpose.PROBE)


def test_a_child_of_another_version_ends_the_search_with_what_to_do(
    opened: Open, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench = opened(FAILS, probes_per_child=1)
    bench.evaluate(PLAN, Purpose.PROBE)
    monkeypatch.setenv("BRIEFING", json.dumps(json.loads(BRIEFING.model_dump_json()) | {"later": 1}))
    with pytest.raises(AutofitError, match=r"autofit was changed while .* the same command resumes") as caught:
        bench.evaluate(PLAN, Purpose.PROBE)
    assert caught.value.exit_code == 1
    assert session(log.pids[-1]) == []


def test_a_proof_on_the_host_has_to_pass_in_a_limited_process_first(opened: Open, log: Log) -> None:
    bench = opened(FAILS, briefing=on_cpu())
    assert bench.evaluate(PLAN, Purpose.PROOF).status is Status.USER_ERROR
    assert [(request["do"], request["limited"]) for request in log.requests] == [
        ("open", False),
        ("open", True),
        ("evaluate", True),
    ]
    assert [request["options"]["enforce"] for request in log.requests[:2]] == [False, True]
    assert log.requests[1]["options"]["memory_budget"] == 12345
    assert session(log.pids[1]) == []
    bench.evaluate(PLAN, Purpose.PROBE)
    assert len(log.pids) == 2  # the warm one is still there


def test_a_proof_that_passes_the_limit_is_timed_without_it(opened: Open, log: Log) -> None:
    passes = """
memory = dict(allocated_bytes=1, judged_bytes=1, judged_by="x")
time_s = 9.0 if limited else 1.0
measurement = dict(step_times_s=[time_s], samples_per_step=8, memory=memory)
say("outcome", outcome=dict(status="measured", measurement=measurement))
"""
    outcome = opened(passes, briefing=on_cpu()).evaluate(PLAN, Purpose.PROOF)
    assert outcome.measurement is not None
    assert outcome.measurement.step_time_s == 1.0
    assert [(request["do"], request["limited"]) for request in log.requests[1:]] == [
        ("open", True),
        ("evaluate", True),
        ("evaluate", False),
    ]


def test_a_proof_on_an_accelerator_needs_no_second_process(opened: Open, log: Log) -> None:
    opened(FAILS).evaluate(PLAN, Purpose.PROOF)
    assert len(log.pids) == 1


def test_plans_with_other_values_that_a_process_keeps_run_in_processes_of_their_own(opened: Open, log: Log) -> None:
    knob = Knob(name="kept", values=(False, True), default=False, of_process=True)
    space = BRIEFING.space.model_copy(update={"knobs": (knob,)})
    bench = opened(FAILS, briefing=BRIEFING.model_copy(update={"space": space}))
    kept = PLAN.replace(kept=True)
    for plan in (PLAN, PLAN.replace(kept=False), kept, kept, PLAN):
        bench.evaluate(plan, Purpose.BLOCK)
    ran = [(log.pids.index(each["pid"]), each["plan"]) for each in log.requests if each["do"] == "evaluate"]
    assert [(number, plan["values"].get("kept", False)) for number, plan in ran] == [
        (0, False), (0, False), (1, True), (1, True), (2, False),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("type_name", "kind"),
    [
        ("WorkloadError", WorkloadError),
        ("SpaceError", SpaceError),
        ("UserCodeError", UserCodeError),
        ("Unheard", AutofitError),
        ("__builtins__", AutofitError),
        ("annotations", AutofitError),
        ("ClassVar", AutofitError),
    ],
)
def test_an_error_while_opening_is_raised_as_it_was(
    opened: Open, log: Log, type_name: str, kind: type[AutofitError]
) -> None:
    says = f"say('error', type={type_name!r}, message='found this', traceback='File x')\ntime.sleep(100)"
    prefix = OPENS.replace('if request["do"] == "open":', 'if request["do"] == "never":')
    with pytest.raises(kind) as error:
        opened(says, prefix=prefix)
    assert type(error.value) is kind
    assert str(error.value) == "found this"
    assert getattr(error.value, "traceback_text", "File x") == "File x"
    assert session(log.pids[0]) == []


def test_a_child_that_dies_while_opening_is_an_error_with_its_last_words(opened: Open) -> None:
    prefix = "print('importing my code', flush=True)\nos.abort()\n"
    with pytest.raises(UserCodeError) as error:
        opened("", prefix=prefix)
    assert (
        "opening train.py:make failed in the phase 'starting its process': the process was terminated by SIGABRT"
        in str(error.value)
    )
    assert error.value.traceback_text == ""
    printed = re.search(r"its output is in (\S+?)\.?$", str(error.value))
    assert printed is not None
    assert "importing my code" in Path(printed[1]).read_text()
    Path(printed[1]).unlink()


@pytest.mark.parametrize("phase", ["import", "open", "survey"])
def test_a_child_that_is_lost_while_it_opens_is_replaced_once(opened: Open, tmp_path: Path, phase: str) -> None:
    lost = tmp_path / "lost"
    kill = "open(path, 'w').close(); os.kill(os.getpid(), signal.SIGKILL)"
    prefix = f"say('beat', phase={phase!r})\npath = {str(lost)!r}\nif not os.path.exists(path): {kill}\n"
    assert opened(FAILS, prefix=prefix + OPENS).briefing == BRIEFING
    assert lost.exists()


@pytest.mark.parametrize("phase", ["import", "open", "survey", "prepare", "step"])
def test_a_child_that_dies_in_a_phase_of_its_opening_is_an_error_that_names_it(opened: Open, phase: str) -> None:
    prefix = f"say('beat', phase={phase!r})\nos._exit(3)\n"
    with pytest.raises(UserCodeError, match=f"failed in the phase '{phase}': the process ended with exit code 3"):
        opened("", prefix=prefix)


@pytest.mark.parametrize("phase", ["prepare", "forward", "step"])
@pytest.mark.parametrize("ends", ["os._exit(3)", "os.abort()", "os.kill(os.getpid(), signal.SIGSEGV)"])
def test_a_child_that_dies_in_a_phase_of_a_run_is_an_outcome_that_names_it(
    opened: Open, log: Log, phase: str, ends: str
) -> None:
    bench = opened(f"say('beat', phase={phase!r})\n{ends}")
    outcome = bench.evaluate(PLAN, Purpose.PROBE)
    assert outcome.status is Status.CRASHED
    assert f"(it was in '{phase}')" in outcome.reason
    assert bench.evaluate(PLAN, Purpose.PROBE).status is Status.CRASHED
    assert len(log.pids) == 2


def test_a_budget_shorter_than_the_opening_says_what_each_phase_took_and_what_would_suffice(opened: Open) -> None:
    prefix = "say('beat', phase='import')\ntime.sleep(0.3)\nsay('beat', phase='open')\ntime.sleep(100)\n"
    with pytest.raises(BudgetSpent) as error:
        opened("", prefix=prefix, clock=Clock(limit_s=2.0))
    assert error.value.exit_code == 7
    expected = (
        r"budget of 2 s ran out before train.py:make was open: 'starting its process' took \S+ m?s, "
        r"'import' took \S+ m?s, 'open' had been running for \S+ s. Give about \S+ s, or look for what hangs"
    )
    assert re.search(expected, str(error.value)), str(error.value)


def test_a_budget_that_ends_while_the_nursery_starts_is_spent_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, FAILS, monkeypatch, nursery="time.sleep(100)")
    before = open_descriptors()
    with pytest.raises(BudgetSpent, match=r"'starting its process' had been running .*its process was not ready"):
        RemoteBench(Target("train.py:make"), deadlines=QUICK, clock=Clock(limit_s=0.3))
    assert open_descriptors() == before


def test_an_error_while_evaluating_is_raised_and_the_next_probe_has_a_new_child(opened: Open, log: Log) -> None:
    bench = opened("say('error', type='RestoreError', message='left changed')")
    with pytest.raises(RestoreError, match="left changed"):
        bench.evaluate(PLAN, Purpose.PROBE)
    with pytest.raises(RestoreError):
        bench.evaluate(PLAN, Purpose.PROBE)
    assert len(log.pids) == 2


def test_leaving_asks_the_child_to_put_everything_back(opened: Open, log: Log) -> None:
    with opened("say('closed'); break"):
        pass
    assert log.requests[-1]["do"] == "close"
    assert session(log.pids[0]) == []
    with pytest.raises(RestoreError, match="differs"), opened("say('error', type='RestoreError', message='differs')"):
        pass


def test_leaving_after_an_error_does_not_wait(opened: Open, log: Log) -> None:
    with pytest.raises(KeyboardInterrupt), opened("time.sleep(100)"):
        raise KeyboardInterrupt
    assert log.requests[-1]["do"] == "open"
    assert session(log.pids[0]) == []


def test_no_descriptor_is_left_open(opened: Open) -> None:
    with opened("say('closed'); break"):
        pass
    before = open_descriptors()
    with opened("say('closed'); break"):
        pass
    assert open_descriptors() == before


TRACES = f"""
if request["do"] == "trace":
    say("trace", trace={
    Trace(
        micro_batch_size=8,
        tensors=Tensors(sizes=(5,), kinds=(Kind.PARAMETER,), origins=(-1,)),
        events=(0,),
        marks=(Mark(name="end", event=1),),
    ).model_dump(mode="json")
})
"""


def test_a_trace_comes_back_as_the_record_it_is(opened: Open, log: Log) -> None:
    found = opened(TRACES).trace(PLAN)
    assert (found.micro_batch_size, found.tensors.sizes, found.tensors.kinds) == (8, (5,), (Kind.PARAMETER,))
    assert log.requests[1]["plan"] == PLAN.model_dump(mode="json")


def test_a_trace_that_ends_at_its_limit_does_not_cost_the_child(opened: Open, log: Log) -> None:
    late = "time.sleep(request['limit_s'] + 0.2); say('trace', reason='took too long', where='train.py:3')"
    bench = opened(f"if request['do'] == 'trace':\n    {late}\nelse:\n    {FAILS}", clock=Clock(limit_s=2.0))
    with pytest.raises(Untraceable, match="took too long"):
        bench.trace(PLAN)
    assert bench.evaluate(PLAN, Purpose.PROBE).status is Status.USER_ERROR
    assert len(log.pids) == 1


def test_a_child_whose_device_is_poisoned_in_a_trace_is_replaced(opened: Open, log: Log) -> None:
    says = "say('error', type='DevicePoisoned', message='an illegal memory access')"
    bench = opened(f"if request['do'] == 'trace':\n    {says}\nelse:\n    {FAILS}")
    with pytest.raises(Untraceable, match="an illegal memory access"):
        bench.trace(PLAN)
    assert bench.evaluate(PLAN, Purpose.PROBE).status is Status.USER_ERROR
    assert len(log.pids) == 2


def test_what_cannot_be_traced_says_why_and_the_child_lives(opened: Open, log: Log) -> None:
    bench = opened('say("trace", reason="aten.nonzero depends on data", where="train.py:7")')
    for _ in range(2):
        with pytest.raises(Untraceable, match=r"aten\.nonzero depends on data \(train\.py:7\)"):
            bench.trace(PLAN)
    assert len(log.pids) == 1


CHECKS = """
if request["do"] == "check":
    verdict = {"passed": True, "reason": "alike"}
    say("checked", checked={"verdicts": {"precision=bf16": verdict}, "caveats": list(request["known"])})
"""


def test_a_check_comes_back_as_the_record_it_is(opened: Open, log: Log) -> None:
    verdict = GateVerdict(passed=True, reason="alike")
    found = opened(CHECKS).check(PLAN, {"accumulation": verdict})
    assert found == Checked(verdicts={"precision=bf16": verdict}, caveats=("accumulation",))
    assert log.requests[1]["plan"] == PLAN.model_dump(mode="json")


@pytest.mark.parametrize(
    "reply",
    ["os._exit(3)", "say('error', type='DevicePoisoned', message='no answer')", "say('checked', checked={'is': 1})"],
)
def test_a_check_that_a_child_does_not_finish_leaves_the_plan_unchecked(opened: Open, log: Log, reply: str) -> None:
    bench = opened(f"if request['do'] == 'check':\n    {reply}\nelse:\n    {FAILS}")
    found = bench.check(PLAN, {})
    assert (found.passed, found.checked) == (False, False)
    assert found.reason.startswith("could not be checked: ")
    assert bench.evaluate(PLAN, Purpose.PROBE).status is Status.USER_ERROR
    assert len(log.pids) == 2


def test_an_examination_is_asked_of_the_child_that_is_there(opened: Open, log: Log) -> None:
    says = "say('examined', examined=request['examiner']['function']) if request['do'] == 'examine' else "
    bench = opened(says + FAILS)
    examiner = Examiner(function="package.module:function", more="more")
    assert bench.examine(examiner, PLAN, 5.0) == examiner.function
    assert log.requests[1]["plan"] == PLAN.model_dump(mode="json")
    assert (log.requests[1]["limit_s"], log.requests[1]["examiner"]["more"]) == (5.0, "more")
    os.killpg(log.pids[0], signal.SIGKILL)
    assert bench.examine(examiner, PLAN, 5.0) == ""  # no child is started for it
    assert len(log.pids) == 1


@pytest.mark.parametrize(
    "reply",
    [
        "os._exit(3)",
        "say('error', type='DevicePoisoned', message='no answer')",
        "say('error', type='RestoreError', message='changed')",
        "say('outcome')",
        "time.sleep(60)",
    ],
)
def test_an_examination_that_a_child_does_not_finish_says_nothing(opened: Open, log: Log, reply: str) -> None:
    bench = opened(f"if request['do'] == 'examine':\n    {reply}\nelse:\n    {FAILS}")
    assert bench.examine(Examiner(function="package.module:function", more="more"), PLAN, 0.1) == ""
    assert bench.evaluate(PLAN, Purpose.PROBE).status is Status.USER_ERROR
    assert len(log.pids) == 2


def test_a_child_that_dies_over_a_trace_is_replaced(opened: Open, log: Log) -> None:
    bench = opened("os._exit(3) if request['do'] == 'trace' else " + FAILS)
    with pytest.raises(Untraceable, match="in the process that traces"):
        bench.trace(PLAN)
    assert bench.evaluate(PLAN, Purpose.PROBE).status is Status.USER_ERROR
    assert len(log.pids) == 2


def test_signs_of_life_reach_the_caller(opened: Open) -> None:
    beats: list[str] = []
    opened("say('beat', phase='forward')\n" + FAILS, beat=beats.append).evaluate(PLAN, Purpose.PROBE)
    assert beats == ["forward"]


# From here on with real workers.

SMALL = Options(memory_budget="1GiB", strategies=("batching",))
PATIENT = Deadlines(first_s=240.0, progress_s=10.0, total_s=240.0, grace_s=0.5, exit_s=30.0)


class Controls:
    """A real bench whose step function does what a file says."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "order"
        self.path.write_text("go")
        target = Target(f"{TARGETS}:make_controlled", {"path": str(self.path)}, device="cpu", options=SMALL)
        self.bench = RemoteBench(target, deadlines=PATIENT)

    def evaluate(self, order: str, purpose: Purpose = Purpose.BLOCK) -> Any:
        self.path.write_text(order)
        return self.bench.evaluate(self.bench.briefing.space.baseline, purpose)

    @property
    def pid(self) -> int:
        assert self.bench._child is not None
        return self.bench._child.process.pid


@pytest.fixture(scope="module")
def controls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Controls]:
    os.environ["AUTOFIT_TEST_TOKEN"] = "hunter2-secret"
    made = Controls(tmp_path_factory.mktemp("controls"))
    yield made
    made.bench.close()
    del os.environ["AUTOFIT_TEST_TOKEN"]


@pytest.mark.slow
@pytest.mark.fault("F22")
def test_the_users_output_does_not_reach_the_protocol_and_no_secret_leaves(controls: Controls) -> None:
    outcome = controls.evaluate("go", Purpose.PROBE)
    assert outcome.measured, outcome.reason
    assert controls.bench._child is not None
    assert len(controls.bench._child.log) <= 2**16
    assert "forged" in controls.bench._child.log
    said = outcome.model_dump_json() + controls.bench.briefing.model_dump_json()
    sent = json.dumps(controls.bench._target.request(enforce=True))
    assert "hunter2" not in said + sent


@pytest.mark.slow
@pytest.mark.leaves("the next child of the bench that the tests of this file share")
@pytest.mark.fault("F20")
def test_a_worker_that_is_killed_costs_one_probe(controls: Controls) -> None:
    first = controls.pid
    outcome = controls.evaluate("die")
    assert outcome.status is Status.CRASHED
    assert "SIGKILL" in outcome.reason
    assert session(first) == []
    assert controls.evaluate("go").measured
    assert controls.pid != first


@pytest.mark.slow
@pytest.mark.fault("F16")
def test_a_step_that_hangs_and_ignores_the_polite_signal_is_ended_with_its_helpers(controls: Controls) -> None:
    assert controls.evaluate("go").measured
    leader, began = controls.pid, time.monotonic()
    outcome = controls.evaluate("hang")
    assert outcome.status is Status.TIMED_OUT
    assert outcome.reason.startswith("no sign of life for 10 s (it was in 'step'); its process was killed")
    assert time.monotonic() - began < 120  # it hangs for 300
    assert session(leader) == []


@pytest.mark.slow
@pytest.mark.fault("F23")
def test_a_reply_that_is_none_costs_one_probe(controls: Controls) -> None:
    outcome = controls.evaluate("garble")
    assert outcome.status is Status.CRASHED
    assert "sent no valid reply: 'this is no reply'" in outcome.reason
    assert controls.bench._child is None


PARENT = """
import sys
from pathlib import Path
from autofit.core.briefing import Options
from autofit.core.trial import Purpose
from autofit.probing.remote.bench import RemoteBench, Target
order = Path(sys.argv[2])
order.write_text("go")
options = Options(memory_budget="1GiB", strategies=("batching",))
bench = RemoteBench(Target(sys.argv[1], {"path": str(order)}, device="cpu", options=options))
outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.BLOCK)
print(outcome.status, bench._child.process.pid, sorted({"torch", "numpy"} & set(sys.modules)), flush=True)
order.write_text("sleep")
bench.evaluate(bench.briefing.space.baseline, Purpose.BLOCK)
"""


def wait_for(reached: Callable[[], bool], seconds: float) -> bool:
    until = time.monotonic() + seconds
    while not reached() and time.monotonic() < until:
        time.sleep(0.05)
    return reached()


@pytest.mark.slow
@pytest.mark.fault("F25")
def test_the_parent_never_loads_torch_and_its_death_in_the_middle_of_a_step_is_the_childs(tmp_path: Path) -> None:
    order = tmp_path / "order"
    command = [sys.executable, "-c", PARENT, f"{TARGETS}:make_controlled", str(order)]
    parent = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert parent.stdout is not None
        status, pid, loaded = parent.stdout.readline().split()
        assert (status, loaded) == ("measured", "[]")
        assert wait_for(order.with_suffix(".asleep").exists, 120)
        assert is_alive(int(pid))
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        assert wait_for(lambda: not is_alive(int(pid)), 60)  # it sleeps for 300
    finally:
        parent.kill()
        parent.wait()
        assert parent.stdout is not None
        parent.stdout.close()


@pytest.mark.slow
@pytest.mark.fault("F20")
def test_a_proof_over_the_budget_fails_in_the_allocator_itself_and_one_inside_passes() -> None:
    options = Options(memory_budget="60MiB", strategies=("batching",))
    with RemoteBench(Target(f"{TARGETS}:make_wide", device="cpu", options=options), deadlines=PATIENT) as bench:
        inside, over = (Plan(values={"micro_batch_size": size}) for size in (64, 512))
        outcome = bench.evaluate(inside, Purpose.PROOF)
        assert outcome.measured, outcome.reason
        assert outcome.measurement is not None
        assert outcome.measurement.memory.judged_bytes < 60 * 2**20
        assert outcome.measurement.worst_steps == 3
        outcome = bench.evaluate(over, Purpose.PROOF)
        assert outcome.status is Status.OUT_OF_MEMORY
        assert "can't allocate memory" in outcome.reason
        assert bench.evaluate(inside, Purpose.BLOCK).measured  # the warm child never saw it
