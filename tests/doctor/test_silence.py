"""What the doctor says of trainings that are written as they should be, and that it does not disturb them."""

import copy
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import autofit
from autofit.doctor.diagnosis import Diagnosis
from autofit.doctor.graphs import saved_tensors
from autofit.doctor.holders import _locals
from autofit.doctor.loops import Enough, ScriptObserver
from autofit.torch_internals import saved_by
from tests.cli.processes import environment

POINTS, LABELS = torch.randn(32, 64), torch.arange(32) % 10


def _model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))


def _loss(model: nn.Module) -> Tensor:
    return F.cross_entropy(model(POINTS), LABELS)


def _watched(step: Callable[[], object], count: int = 8) -> Diagnosis:
    loader = autofit.watch(range(count), show=False)
    for _ in loader:
        step()
    assert loader.diagnosis is not None
    return loader.diagnosis


def _kinds(found: Diagnosis) -> set[str]:
    return {each.id for each in found.findings}


def _training(model: nn.Module, optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    def step() -> None:
        optimizer.zero_grad()
        _loss(model).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def test_asking_a_frame_for_its_variables_keeps_none_of_them_alive() -> None:
    def holds() -> tuple[dict[str, object], "weakref.ref[Tensor]"]:
        tensor: Any = torch.zeros(4)
        found, before = dict(_locals(sys._getframe())), weakref.ref(tensor)
        tensor = None
        assert isinstance(found.pop("tensor"), Tensor)
        assert before() is None, "the frame has kept a copy"
        return found, before

    holds()


def test_a_copy_of_variables_that_the_user_holds_is_left_alone() -> None:
    number = 3
    names = locals()
    assert _locals(sys._getframe())["number"] == number
    assert names["number"] == number


def test_a_short_list_of_last_results_is_no_growth() -> None:
    """The last step asks frames for their variables; a copy of these kept the results of an earlier step."""
    model, last, big = _model(), list[Tensor](), 0
    loader = autofit.watch(range(8), show=False)
    with torch.no_grad():
        for _ in loader:
            last = [*last[-2:], model(POINTS)]
            big += torch.zeros(100, 100).numel()
    assert loader.diagnosis is not None
    assert not _kinds(loader.diagnosis) & {"grows", "graph-kept"}


def test_gradients_that_move_the_weights_before_they_are_zeroed_are_not_dropped() -> None:
    model = _model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(*, reads: bool) -> None:
        _loss(model).backward()  # type: ignore[no-untyped-call]
        if reads:
            for each in model.parameters():
                each.data.add_(each.grad, alpha=0.01)  # type: ignore[arg-type]
        optimizer.zero_grad()
        _loss(model).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()

    assert "gradient-dropped" not in _kinds(_watched(lambda: step(reads=True)))
    assert "gradient-dropped" in _kinds(_watched(lambda: step(reads=False)))


def test_the_history_of_lbfgs_is_no_growth() -> None:
    model = _model()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = _loss(model)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    assert not _kinds(_watched(lambda: optimizer.step(closure))) & {"grows", "gradient-dropped"}  # type: ignore[no-untyped-call]


def test_torch_func_runs_under_the_watch() -> None:
    model = _model()
    train = _training(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def step() -> None:
        weights = {name: value.detach() for name, value in model.named_parameters()}

        def error(values: dict[str, Tensor], row: Tensor, label: Tensor) -> Tensor:
            return F.cross_entropy(torch.func.functional_call(model, values, (row[None],)), label[None])

        torch.func.vmap(torch.func.grad(error), in_dims=(None, 0, 0))(weights, POINTS, LABELS)
        train()

    found = _watched(step)
    assert found.steps == 6
    assert "saved-unused" in found.checked


def test_copies_of_a_model_are_not_held() -> None:
    model, seen = nn.Sequential(*_model(), nn.Dropout()), list["weakref.ref[nn.Module]"]()
    train = _training(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def step() -> None:
        again = copy.deepcopy(model)
        again(POINTS)
        seen.append(weakref.ref(again))
        train()

    found = _watched(step)
    gc.collect()
    assert not [each for each in seen if each() is not None]
    assert "grows" not in _kinds(found)


def test_saved_tensors_are_read_without_running_hooks() -> None:
    """Hooks of checkpointing would run the forward pass again."""
    asked = list[Tensor]()
    x = torch.ones(3, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor.numpy(), asked.append):  # type: ignore[arg-type]
        packed = x.exp()
    assert not list(saved_tensors(packed.grad_fn, set()))
    plain = x.exp()
    assert [each.data_ptr() for each in saved_by(plain.grad_fn)] == [plain.data_ptr()]
    plain.sum().backward()  # type: ignore[no-untyped-call]
    assert saved_by(plain.grad_fn) == [None]
    assert not asked


def test_a_model_without_memory_is_no_device() -> None:
    model, empty = _model(), nn.Linear(4, 4, device="meta")
    train = _training(model, torch.optim.SGD(model.parameters(), lr=0.1))

    def step() -> None:
        empty(torch.zeros(2, 4, device="meta"))
        train()

    assert _watched(step).device_type == "cpu"


def test_parameters_that_are_made_later_are_not_called_untrained() -> None:
    model = _model()

    def step() -> None:
        model[2] = nn.Linear(128, 10)
        _training(model, torch.optim.SGD(model.parameters(), lr=0.1))()

    assert "no-gradient" not in _kinds(_watched(step))


def test_a_defect_of_the_watch_ends_no_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise ValueError("a defect")

    monkeypatch.setattr("autofit.doctor.session.Watch", fails)
    loader, model, steps = autofit.watch(range(8)), _model(), list[int]()
    train = _training(model, torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.warns(UserWarning, match="a defect"):
        steps += [step for step in loader if train() is None]
    assert len(steps) == 8
    assert loader.diagnosis is None


def test_a_script_that_swallows_everything_is_ended_with_what_was_found() -> None:
    model, ended = _model(), list[Diagnosis]()

    class Ended(BaseException):
        pass

    def end(found: Diagnosis) -> None:
        ended.append(found)
        raise Ended

    train, swallowed = _training(model, torch.optim.SGD(model.parameters(), lr=0.1)), list[Enough]()

    def script() -> None:
        while True:
            try:
                train()
            except Enough as enough:
                swallowed.append(enough)

    with ScriptObserver("train.py", end=end), pytest.raises(Ended):
        script()
    assert len(swallowed) == 3
    assert ended[0].steps == 6


SCRIPT = """
import atexit, os, subprocess, torch
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
atexit.register(print, "at exit")
for step in range(9):
    os.write(1, b"descriptor")
    print("print")
    subprocess.run(["echo", "process"])
    if step == LAST:
        raise ValueError("broken")
    model(torch.ones(2, 8)).sum().backward()
    optimizer.step()
"""


@pytest.mark.parametrize(("last", "code", "steps"), [(99, 0, 6), (4, 5, 3)])
def test_stdout_of_a_watched_script_is_the_result(tmp_path: Path, last: int, code: int, steps: int) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.replace("LAST", str(last)), encoding="utf-8")
    command = [sys.executable, "-m", "autofit", "doctor", "--script", str(script), "--json"]
    done = subprocess.run(
        command, env=environment(), capture_output=True, text=True, timeout=120, cwd=tmp_path, check=False
    )
    found = Diagnosis.model_validate_json(done.stdout)
    assert (done.returncode, found.steps, found.failed) == (code, steps, code == 5)
    assert all(text in done.stderr for text in ("descriptor", "print", "process", "at exit"))
    assert ("ValueError: broken" in done.stderr) == (code == 5)
