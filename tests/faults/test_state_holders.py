"""F26, defect 1: state that the user's functions, hooks, helpers and data hold is untouched by `tune()`.

Each holder is a way in which people keep state. Its witness reads that state independently of the guard. The search is
replaced by one real probe of the baseline; one test runs a whole search over all of them.
"""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader

import autofit
from autofit import api, in_process
from autofit.core.outcome import Status
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.guard.object_state import fingerprint
from autofit.workloads.loss import resolve_loss
from autofit.workloads.sources import source_of
from autofit.workloads.step import Draft, StepBatch, TrainStep
from autofit.workloads.workload import Workload
from tests.faults import holders_of_data, holders_of_models, holders_of_modules, holders_of_objects, holders_of_steps
from tests.faults.holders import HOLDERS, Holder, net, samples

pytestmark = pytest.mark.slow

QUICK: dict[str, Any] = {
    "device": "cpu", "memory_budget": "256MiB", "study": ":memory:", "progress": False, "strategies": ("batching",),
}  # fmt: skip
WAYS = (holders_of_data, holders_of_models, holders_of_modules, holders_of_objects, holders_of_steps)


def arguments(one: Holder) -> dict[str, Any]:
    given = dict(one.given)
    given.setdefault("model", net())
    given.setdefault("loader", DataLoader(samples(), batch_size=8))
    # By a name of its own: the optimizer belongs to the model.
    if not {"step_fn", "loss_fn"} & set(given):
        given["loss_fn"] = F.cross_entropy
    return given


class Ended(Exception):
    """The search failed."""


def probe_once(status: list[Status], end: BaseException | None = None) -> Callable[..., Any]:
    """Returns a search that probes the baseline once."""

    def search(bench: Any, *_: Any) -> Any:
        outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
        status.append(outcome.status)
        assert outcome.status is Status.MEASURED, outcome
        if end is not None:
            raise end
        return SimpleNamespace(caveats=bench.briefing.caveats)

    return search


def run(one: Holder, monkeypatch: pytest.MonkeyPatch, end: BaseException | None = None) -> tuple[str, ...]:
    """Runs `autofit.tune` with one probe, and returns its caveats."""
    status: list[Status] = []
    monkeypatch.setattr(in_process, "search", probe_once(status, end))
    try:
        fit = api.tune(**arguments(one), **QUICK)
    finally:
        assert status
    return fit.answer.caveats


def step_plainly(one: Holder) -> None:
    """Does what a probe does, without a guard."""
    workload = Workload(**arguments(one))
    source = source_of(workload.loader, worst_case=workload.worst_case)
    batch = source.worst(2)
    loss = resolve_loss(workload.model, batch, loss_fn=workload.loss_fn, step_fn=workload.step_fn)
    optimizer = workload.make_optimizer()
    step = TrainStep(Plan(), Draft(workload.model, loss, optimizer, torch.device("cpu")))
    step(StepBatch.of([source.worst(4), source.typical(4, 1)[0]]))


@pytest.mark.parametrize("name", HOLDERS)
@pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:Detected call of .lr_scheduler")
def test_f26_defect_01_a_plain_step_changes_it(name: str) -> None:
    """Without the guard each holder's state differs: the tests below can fail."""
    one = HOLDERS[name]()
    before = fingerprint(one.state())
    assert fingerprint(one.state()) == before
    step_plainly(one)
    assert fingerprint(one.state()) != before


@pytest.mark.parametrize("end", [None, KeyboardInterrupt(), Ended()], ids=["normal", "interrupt", "error"])
@pytest.mark.parametrize("name", HOLDERS)
@pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:Detected call of .lr_scheduler")
@pytest.mark.fault("F26")
def test_f26_defect_01_it_is_bit_identical_after_tune(
    name: str, end: BaseException | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = HOLDERS[name]()
    before, objects = fingerprint(one.state()), one.objects()
    if end is None:
        caveats = run(one, monkeypatch)
        assert not [c for c in caveats if "put back" in c or "copied" in c]
    else:
        with pytest.raises(type(end)):
            run(one, monkeypatch, end)
    assert fingerprint(one.state()) == before
    assert len(one.objects()) == len(objects)
    assert all(now is kept for now, kept in zip(one.objects(), objects, strict=True))


@pytest.mark.fault("F26")
def test_f26_it_is_bit_identical_after_a_whole_search() -> None:
    names = ("bound method", "second optimizer with state", "helper on the model", "data set that writes")
    for name in names:
        one = HOLDERS[name]()
        before = fingerprint(one.state())
        autofit.tune(**arguments(one), **QUICK, time_budget=5.0, global_batch_size=8)
        assert fingerprint(one.state()) == before, name


def test_f26_there_are_at_least_thirty_ways() -> None:
    """Importing the modules registers them."""
    assert all(WAYS)
    assert len(HOLDERS) >= 30
