"""The worker's protocol: what it replies to requests, and how it shows errors. Here in this process, over text."""

import gc
import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from autofit import devices
from autofit.chips import StandIn
from autofit.core.account import Account
from autofit.core.briefing import Briefing, Options
from autofit.core.errors import WorkloadError
from autofit.core.outcome import SURVEY, Outcome
from autofit.core.trial import OPEN
from autofit.memory.trace import Trace
from autofit.probing.remote.target import Target
from autofit.probing.remote.worker import Worker, options_of, workload_of
from autofit.probing.watchdog import Watchdog
from tests.probing import targets

TARGETS = str(Path(targets.__file__))
OPTIONS = Options(memory_budget="1GiB", strategies=("batching",)).model_dump(mode="json")
Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Serves requests and returns what was said, beats left out."""
    monkeypatch.setattr(sys, "path", list(sys.path))

    def serve(*requests: dict[str, Any], beats: bool = False) -> list[dict[str, Any]]:
        text = "".join(json.dumps(request) + "\n" for request in requests)
        said = io.StringIO()
        worker = Worker(io.StringIO(text), said)
        worker.serve()
        lines = [json.loads(line) for line in said.getvalue().splitlines()]
        return [line for line in lines if beats or line["kind"] != "beat"]

    yield serve
    sys.modules.pop("autofit_target", None)
    gc.unfreeze()  # a worker's bench stays open until its process ends


def opening(target: str = f"{TARGETS}:make_mlp", **changes: Any) -> dict[str, Any]:
    request = {"do": "open", "target": target, "arguments": {}, "overrides": {}, "device": "cpu", "options": OPTIONS}
    return request | changes


def evaluating(purpose: str = "probe", **values: Any) -> dict[str, Any]:
    plan = {"values": {"micro_batch_size": 8} | values}
    return {"do": "evaluate", "plan": plan, "purpose": purpose, "terms": OPEN.model_dump(mode="json")}


def test_what_ends_an_opening_that_takes_too_long_knows_what_it_was_doing(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    phases: list[str] = []
    monkeypatch.setattr(Watchdog, "beat", lambda watch, phase: phases.append(phase))
    run(opening(time_budget={"limit_s": 60.0, "elapsed_s": 0.0}), {"do": "close"})
    assert phases[:2] == [SURVEY, "open"]


def test_open_evaluate_close(run: Run) -> None:
    briefing, probe, block, closed = run(opening(), evaluating(), evaluating("block"), {"do": "close"})
    assert briefing["kind"] == "briefing"
    assert Briefing.model_validate(briefing["briefing"]).budget.memory_bytes == 2**30
    for reply in (probe, block):
        assert reply["kind"] == "outcome"
        assert Outcome.model_validate(reply["outcome"]).measured
    assert closed == {"kind": "closed"}


def test_signs_of_life_come_before_and_during_the_work(run: Run) -> None:
    said = run(opening(), evaluating(), beats=True)
    phases = [line["phase"] for line in said if line["kind"] == "beat"]
    assert phases[:2] == ["import", "open"]
    assert {"fetch", "prepare", "step"} <= set(phases[2:])


def test_the_end_of_input_ends_it_and_so_does_close(run: Run) -> None:
    assert run() == []
    assert [reply["kind"] for reply in run(opening(), {"do": "close"}, evaluating())] == ["briefing", "closed"]


def test_arguments_and_overrides_reach_the_workload(run: Run) -> None:
    (reply,) = run(opening(arguments={"global_batch_size": 24, "max_grad_norm": 2.0}))
    assert reply["briefing"]["space"]["global_batch_size"] == 24
    assert reply["briefing"]["environment"]["settings"]["max_grad_norm"] == "2.0"
    overrides = {"global_batch_size": 16, "mode": None, "max_grad_norm": None}
    (reply,) = run(opening(arguments={"global_batch_size": 24, "max_grad_norm": 2.0}, overrides=overrides))
    assert reply["briefing"]["space"]["global_batch_size"] == 16
    assert reply["briefing"]["environment"]["settings"]["max_grad_norm"] == "2.0"


@pytest.mark.parametrize(
    ("request_changes", "kind", "text"),
    [
        ({"target": f"{TARGETS}:make_mpl"}, "UsageError", "Did you mean make_mlp"),
        ({"target": "/nowhere/train.py"}, "UsageError", "does not exist"),
        ({"device": "tpu"}, "DeviceMissing", "no device 'tpu' here"),
        ({"options": OPTIONS | {"strategies": ["magic"]}}, "SpaceError", "unknown strategy 'magic'"),
        ({"target": "absent.py", "options": {"strategies": ["batchng"]}}, "SpaceError", "Did you mean 'batching'?"),
        ({"target": "absent.py", "options": {"without": ["precison"]}}, "SpaceError", "Did you mean 'precision'?"),
        ({"target": "absent.py", "options": {"pinned": {"precison": 1}}}, "SpaceError", "Did you mean 'precision'?"),
        ({"target": "absent.py", "options": {"pinned": {"zzz": 1}}}, "SpaceError", "Expected some of memory_format, "),
        ({"options": OPTIONS | {"memory_budget": "lots"}}, "UsageError", "cannot read 'lots'"),
        ({"overrides": {"mode": "predict"}}, "WorkloadError", "mode is 'predict'"),
        ({"arguments": {"depth": 3}}, "UserCodeError", "unexpected keyword argument 'depth'"),
        ({"target": f"{TARGETS}:make_nothing"}, "WorkloadError", "returned a NoneType"),
        ({"target": f"{TARGETS}:make_misspelt"}, "WorkloadError", "Did you mean loss_fn?"),
        ({"target": f"{TARGETS}:make_badly_set", "options": {}}, "WorkloadError", "numerics is 'precise'"),
    ],
)
def test_what_cannot_be_opened_is_said_and_ends_it(
    run: Run, request_changes: dict[str, Any], kind: str, text: str
) -> None:
    (reply,) = run(opening(**request_changes), evaluating())
    assert (reply["kind"], reply["type"]) == ("error", kind)
    assert text in reply["message"]


def test_an_error_of_the_users_comes_with_their_frames(run: Run) -> None:
    for place in ("factory", "model", "data", "optimizer"):
        (reply,) = run(opening(f"{TARGETS}:make_broken", arguments={"place": place}))
        assert reply["type"] == "UserCodeError"
        assert f"broken on purpose: {place}" in reply["message"]
        assert "targets.py" in reply["traceback"]
        assert "/autofit/probing/" not in reply["traceback"]


@pytest.mark.parametrize("name", ["KeyboardInterrupt", "SystemExit", "GeneratorExit"])
def test_an_exit_in_the_users_code_is_the_users_error(name: str, run: Run) -> None:
    (reply,) = run(opening(f"{TARGETS}:make_exiting", arguments={"name": name}))
    assert reply["type"] == "UserCodeError"
    assert f"your code raised {name} while the workload was opened" in reply["message"]
    assert "targets.py" in reply["traceback"]


def test_an_error_of_our_own_is_said_as_that(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(name: object) -> object:
        raise RuntimeError("a defect")

    monkeypatch.setattr(devices, "choose", broken)
    with pytest.raises(RuntimeError, match="a defect"):
        run(opening())
    said = io.StringIO()
    worker = Worker(io.StringIO(json.dumps(opening()) + "\n"), said)
    with pytest.raises(RuntimeError):
        worker.serve()
    last = json.loads(said.getvalue().splitlines()[-1])
    assert last["type"] == "AutofitError"
    assert "the probing process failed" in last["message"]
    assert "in broken" in last["message"]


def test_a_parent_that_is_gone_ends_it_quietly() -> None:
    class Closed(io.StringIO):
        def flush(self) -> None:
            raise BrokenPipeError

    worker = Worker(io.StringIO(json.dumps(opening()) + "\n"), Closed())
    worker.serve()


def test_an_accelerators_limit_is_always_on(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    cpu: Any = type(devices.choose("cpu"))

    class Accelerator(cpu):  # type: ignore[misc]  # a class that is looked up
        is_host = False

    monkeypatch.setattr(devices, "choose", lambda name: Accelerator())
    (reply,) = run(opening())
    assert reply["briefing"]["enforced"] is True
    monkeypatch.undo()
    (reply,) = run(opening())
    assert reply["briefing"]["enforced"] is False


def test_arguments_of_tune_that_this_process_has_no_use_for_are_named(run: Run) -> None:
    (reply,) = run(opening(f"{TARGETS}:make_dict"))
    (caveat,) = [text for text in reply["briefing"]["caveats"] if "was ignored" in text]
    assert caveat.startswith("time_budget, study from ")
    assert reply["briefing"]["budget"]["memory_bytes"] == 2**30  # asked for, so it wins over the dict's


def test_options_of_the_factory_fill_what_was_not_asked() -> None:
    made = options_of({"numerics": "exact", "strategies": ["batching"], "model": None, "time_budget": 3}, {})
    assert (made.numerics, made.strategies) == ("exact", ("batching",))
    for asked in ("any", "mixed"):  # also what is the default
        options = Target("train.py", options=Options(numerics=asked)).request(False)["options"]
        assert options_of({"numerics": "exact", "seed": 5}, options).numerics == asked
        assert options_of({"numerics": "exact", "seed": 5}, options).seed == 5
    with pytest.raises(WorkloadError, match="seed is 'first': Input should be a valid integer"):
        options_of({"seed": "first"}, {})


def test_the_evaluation_of_a_target_is_opened_in_inference_beside_what_the_training_keeps(run: Run) -> None:
    request = opening(f"{TARGETS}:make_evaluated")
    (reply,) = run(request)
    assert reply["briefing"]["evaluates"]
    options = request["options"] | {"resident_bytes": 2**20}
    (reply,) = run(request | {"evaluation": True, "options": options})
    briefing = reply["briefing"]
    assert briefing["environment"]["settings"]["mode"] == "inference"
    assert not briefing["evaluates"]
    assert 0 < 2**30 - briefing["budget"]["memory_bytes"] < 2**20


def test_a_target_without_an_evaluation_the_next_time_is_refused(run: Run) -> None:
    (reply,) = run(opening() | {"evaluation": True})
    assert reply["kind"] == "error"
    assert "returned no eval_loader when it was called again" in reply["message"]


def test_a_workload_takes_what_is_its_own() -> None:
    made = workload_of({"model": targets.mlp(), "loader": [1], "numerics": "any", "mode": "train"}, {"mode": None})
    assert made.mode == "train"
    assert made.loader == [1]


def test_a_stand_in_only_traces(run: Run) -> None:
    stand_in = StandIn(type="cpu").model_dump(mode="json")
    tracing = {"do": "trace", "plan": {"values": {"micro_batch_size": 8}}}
    briefing, trace, closed = run(opening(stand_in=stand_in), tracing, {"do": "close"})
    assert Briefing.model_validate(briefing["briefing"]).account == Account(allocator="host")
    assert Trace.model_validate(trace["trace"]).micro_batch_size == 8
    assert closed == {"kind": "closed"}
    with pytest.raises(AssertionError, match="not with a stand-in"):
        run(opening(stand_in=stand_in), evaluating())
