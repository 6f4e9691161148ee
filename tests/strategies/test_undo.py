"""Undo: a step that is closed gives all back; one that is dropped, or open when a script ends, changes nothing."""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch import nn

from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.strategies import members
from autofit.strategies.undo import Undo
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, StepBatch, TrainStep

pytestmark = pytest.mark.slow

EVERYTHING = {
    "memory_format": "channels_last",
    "precision": "bf16",
    "optimizer_implementation": "fused",
    "checkpointed_blocks": 2,
}
PLANS = {"channels_last": {"memory_format": "channels_last"}, "everything": EVERYTHING}
ENDINGS = ("", "raise SystemExit(0)", "del step", "step.close()", "keep = [step]; keep.append(keep)")
SCRIPT = """
import gc, json, os, sys
import torch
from tests.strategies.test_undo import PLANS, images, prepared
gc.freeze()  # what was imported is not collected again at the end of each process
found = []
for case in json.loads(sys.stdin.readline()):
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        for number, name in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{case['at']}.{name}", os.O_WRONLY | os.O_CREAT), number)
        break
    found.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
else:
    print(json.dumps(found), flush=True)
    os._exit(0)
step = prepared(PLANS[case["plan"]])
for part in images():
    loss = step(part)
print("loss", float(loss))
exec(case["ending"])
"""
"""Runs one script for each case, each in a process of its own that ends as any script does; torch is imported once."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.ReLU()) for _ in range(3))
        self.register_buffer("mean", torch.zeros(4, 4, 2, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def images() -> list[StepBatch]:
    return [StepBatch.of([torch.randn(2, 4, 8, 8)]) for _ in range(2)]


def prepared(values: dict[str, str | int]) -> TrainStep:
    model = Net()
    loss = LossRule("loss", lambda model, batch: model(batch), inferred=False, about="")
    draft = Draft(model, loss, torch.optim.Adam(model.parameters()), torch.device("cpu"))
    return prepare(Plan(values={"micro_batch_size": 2, "accumulation_steps": 1, **values}), draft, members())


def outline(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[object]:
    strides = [tensor.stride() for tensor in (*model.parameters(), *model.buffers())]
    groups = [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]
    return [strides, groups, [sorted(vars(module)) for module in model.modules()], sorted(vars(optimizer))]


@pytest.mark.parametrize("values", [{key: value} for key, value in EVERYTHING.items()] + [EVERYTHING], ids=str)
def test_a_step_that_is_dropped_leaves_the_model_as_the_plan_has_it(values: dict[str, str | int]) -> None:
    step = prepared(values)
    model, optimizer = step.draft.model, step.draft.optimizer
    assert optimizer is not None
    step(images()[0])
    before = outline(model, optimizer)
    del step
    gc.collect()
    assert outline(model, optimizer) == before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks one process for each script")
def test_a_script_that_ends_with_a_step_ends_well(tmp_path: Path) -> None:
    """With channels_last the process ended with SIGABRT: what was to be undone ran while the interpreter shut down."""
    cases = [
        {"plan": plan, "ending": ending, "at": str(tmp_path / f"{plan}-{number}")}
        for plan in PLANS
        for number, ending in enumerate(ENDINGS)
    ]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(cases) + "\n",
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    codes = json.loads(done.stdout)
    assert len(codes) == len(PLANS) * len(ENDINGS)
    for case, code in zip(cases, codes, strict=True):
        assert (code, Path(f"{case['at']}.err").read_text()) == (0, ""), case
        assert Path(f"{case['at']}.out").read_text().startswith("loss "), case


def test_what_is_left_is_undone_in_reverse_also_after_an_error_and_what_is_dropped_is_not() -> None:
    done: list[int] = []

    @contextmanager
    def context() -> Iterator[None]:
        with Undo() as undo:
            undo.callback(done.append, 1)
            undo.callback(done.append, 2)
            yield

    with context():
        pass
    with pytest.raises(KeyError), context():
        raise KeyError
    assert done == [2, 1, 2, 1]
    dropped = context()
    dropped.__enter__()
    del dropped
    gc.collect()
    assert done == [2, 1, 2, 1]


def test_a_replaced_entry_has_the_new_value_until_the_end() -> None:
    attributes = {"held": 1}
    with Undo() as undo:
        undo.replace(attributes, "held", 2)
        undo.replace(attributes, "new", 3)
        assert attributes == {"held": 2, "new": 3}
    assert attributes == {"held": 1}


def test_entries_get_their_values_back_and_new_ones_are_removed() -> None:
    attributes = {"held": 1, "removed": 2}
    with Undo() as undo:
        for key in ("held", "removed", "new"):
            undo.replace(attributes, key, 0)
        attributes |= {"held": 3, "new": 4}
        del attributes["removed"]
    assert attributes == {"held": 1, "removed": 2}
