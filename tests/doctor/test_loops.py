"""`autofit.watch` around loops as people write them, and scripts that run under the observer."""

import gc
import sys
from collections.abc import Iterator
from contextlib import suppress
from threading import Event, Thread
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit.core.errors import UsageError
from autofit.doctor.diagnosis import Diagnosis, Finding
from autofit.doctor.loops import INCOMPLETE, Enough, ScriptObserver
from autofit.doctor.observation import GROWING

WIDTH, BATCH = 1024, 256
OUTPUT_BYTES = BATCH * WIDTH * 4
STEPS = 6
"""Number of steps that a complete observation watches, after one that it does not."""


def make(batches: int = 12) -> tuple[nn.Module, torch.optim.Optimizer, DataLoader[Any]]:
    torch.manual_seed(0)
    model = nn.Linear(16, WIDTH)
    data = TensorDataset(torch.randn(batches * BATCH, 16), torch.randint(WIDTH, (batches * BATCH,)))
    return model, torch.optim.SGD(model.parameters(), lr=0.1), DataLoader(data, BATCH)


def train(loader: Any, model: nn.Module, optimizer: torch.optim.Optimizer, every: int = 1) -> None:
    """A loop that keeps nothing; the optimizer steps after `every` batches."""
    for number, (inputs, targets) in enumerate(loader, 1):
        torch.autograd.backward(F.cross_entropy(model(inputs), targets))
        if number % every == 0:
            optimizer.step()
            optimizer.zero_grad()


def shown(diagnosis: Diagnosis | None) -> list[Finding]:
    assert diagnosis is not None
    return [each for each in diagnosis.findings if not each.minor]


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    """Functions of torch that are replaced meanwhile are its own again."""
    before = torch.autograd.backward
    yield
    assert torch.autograd.backward is before


def test_a_training_is_watched_and_says_what_it_keeps() -> None:
    model, optimizer, loader = make()
    kept, watched = [], autofit.watch(loader, show=False)
    for inputs, targets in watched:
        outputs = model(inputs)
        kept.append(outputs.detach())
        torch.autograd.backward(F.cross_entropy(outputs, targets))
        optimizer.step()
        optimizer.zero_grad()
    assert len(kept) == 12
    assert watched.diagnosis is not None
    assert (watched.diagnosis.target, watched.diagnosis.steps) == ("the loop", STEPS)
    (found,) = shown(watched.diagnosis)
    assert found.id == "grows"
    assert found.size is not None
    assert found.size.bytes_per_step == OUTPUT_BYTES
    assert "`kept[" in found.places[0].holder
    assert "test_loops.py:" in found.places[0].line


def test_it_computes_the_same_and_yields_every_batch() -> None:
    weights = []
    for watch in (False, True):
        model, optimizer, loader = make()
        train(autofit.watch(loader, show=False) if watch else loader, model, optimizer)
        weights.append([each.detach().clone() for each in model.parameters()])
    assert all(torch.equal(plain, watched) for plain, watched in zip(*weights, strict=True))


def test_good_code_has_no_finding() -> None:
    model, optimizer, loader = make()
    watched = autofit.watch(loader, show=False)
    train(watched, model, optimizer)
    assert shown(watched.diagnosis) == []
    assert watched.diagnosis is not None
    assert watched.diagnosis.notes == ()


def test_in_an_evaluation_each_batch_is_a_step() -> None:
    model, _, loader = make(STEPS + 1)
    kept, watched = [], autofit.watch(loader, show=False)
    for inputs, targets in watched:
        kept.append(F.cross_entropy(model(inputs), targets))
    assert watched.diagnosis is not None
    assert watched.diagnosis.steps == STEPS
    (found,) = shown(watched.diagnosis)
    assert (found.id, "no_grad" in found.remedy) == ("graph-kept", True)
    assert "`kept[" in found.places[0].holder


def test_with_accumulation_a_step_ends_where_the_optimizer_steps() -> None:
    model, optimizer, loader = make(2 * (STEPS + 1))
    kept, watched = [], autofit.watch(loader, show=False)
    for number, (inputs, targets) in enumerate(watched, 1):
        outputs = model(inputs)
        kept.append(outputs.detach())
        torch.autograd.backward(F.cross_entropy(outputs, targets))
        if number % 2 == 0:
            assert watched.diagnosis is None
            optimizer.step()
            optimizer.zero_grad()
    assert watched.diagnosis is not None
    assert watched.diagnosis.steps == STEPS
    (found,) = shown(watched.diagnosis)
    assert found.size is not None
    assert found.size.bytes_per_step == 2 * OUTPUT_BYTES


def test_a_loop_that_is_left_early_has_what_was_found_until_then() -> None:
    model, optimizer, loader = make()
    watched = autofit.watch(loader, show=False)
    for number, (inputs, targets) in enumerate(watched):
        if number == 4:
            break
        torch.autograd.backward(F.cross_entropy(model(inputs), targets))
        optimizer.step()
    assert watched.diagnosis is not None
    assert watched.diagnosis.notes == (INCOMPLETE,)
    assert 2 <= watched.diagnosis.steps < GROWING
    assert shown(watched.diagnosis) == []
    growth = {"grows", "graph-kept", "graph-grows"}
    assert growth <= {each.id for each in watched.diagnosis.unchecked}
    assert not growth & set(watched.diagnosis.checked)


@pytest.mark.parametrize("batches", [0, 1])
def test_a_loop_that_is_too_short_has_no_diagnosis(batches: int, capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer, loader = make(2)
    watched = autofit.watch(list(loader)[:batches])
    train(watched, model, optimizer)
    assert watched.diagnosis is None
    assert capsys.readouterr().out == ""


def test_an_error_in_the_loop_is_the_users_and_observes_nothing_any_more() -> None:
    model, optimizer, loader = make()
    watched = autofit.watch(loader, show=False)

    def fails() -> None:
        for number, (inputs, targets) in enumerate(watched):
            torch.autograd.backward(F.cross_entropy(model(inputs), targets))
            optimizer.step()
            if number == 3:
                raise ValueError("in the loop")

    with pytest.raises(ValueError, match="in the loop"):
        fails()
    assert watched.diagnosis is not None
    assert watched.diagnosis.notes == (INCOMPLETE,)


def test_a_list_with_a_limit_is_told_from_growth_by_more_steps() -> None:
    model, optimizer, loader = make(16)

    def found(steps: int) -> list[Finding]:
        last, watched = list[torch.Tensor](), autofit.watch(loader, steps=steps, show=False)
        for x, _ in watched:
            optimizer.zero_grad()
            out = model(x)
            out.mean().backward()
            optimizer.step()
            last.append(out.detach())
            del last[:-8]
        return shown(watched.diagnosis)

    (growth,) = found(6)
    assert "room for more than 6 items" in growth.evidence[0]
    assert not {each.id for each in found(12)} & {"grows", "graph-kept", "graph-grows"}


def test_too_few_steps_are_refused() -> None:
    with pytest.raises(UsageError, match="at least 6"):
        autofit.watch([], steps=3)


def test_of_two_loops_at_once_the_first_is_observed() -> None:
    first, second = (autofit.watch(make(batches)[2], show=False) for batches in (10, 12))
    model, optimizer, _ = make()
    with pytest.warns(UserWarning, match="another observation has not ended"):
        train((batch for batch, _ in zip(first, second, strict=False)), model, optimizer)
    assert first.diagnosis is not None
    assert second.diagnosis is None
    train(second, model, optimizer)
    assert second.diagnosis is not None, "the other one has ended"


def test_an_abandoned_loop_is_over_for_the_next_one() -> None:
    model, optimizer, loader = make()
    abandoned: list[Any] = [iter(autofit.watch(loader, show=False))]
    abandoned.append(abandoned)  # only Python's garbage collection, which is off meanwhile, frees it
    train([next(abandoned[0]) for _ in range(3)], model, optimizer)
    del abandoned
    watched = autofit.watch(loader, show=False)
    train(watched, model, optimizer)
    assert watched.diagnosis is not None
    assert gc.isenabled()


def test_what_other_threads_train_is_left_alone() -> None:
    over, failed = Event(), list[Exception]()

    def train_another() -> None:
        model = nn.Sequential(*(nn.Linear(4, 4) for _ in range(10)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        try:
            while not over.is_set():
                torch.autograd.backward(model(torch.ones(2, 4)).sum())
                optimizer.step()
        except Exception as error:  # it is looked at below
            failed.append(error)

    threads, before = [Thread(target=train_another) for _ in range(3)], sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    model, optimizer, loader = make()
    watched = autofit.watch(loader, show=False)
    for thread in threads:
        thread.start()
    try:
        train(watched, model, optimizer)
    finally:
        over.set()
        sys.setswitchinterval(before)
        for thread in threads:
            thread.join()
    assert not failed
    assert shown(watched.diagnosis) == []


def test_a_function_that_the_loop_replaces_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    model, optimizer, loader = make()
    cleaned = list[int]()
    monkeypatch.setattr(gc, "collect", gc.collect)  # puts it back at the end
    for number, batch in enumerate(autofit.watch(loader, show=False)):
        train([batch], model, optimizer)
        if number == 3:
            gc.collect = own = lambda generation=2: cleaned.append(generation) or 0  # type: ignore[func-returns-value]
    assert gc.collect is own


def test_batches_that_are_in_memory_before_are_no_higher_step() -> None:
    torch.manual_seed(0)
    model = nn.Linear(1024, 1)
    batches = [torch.randn(256, 1024) for _ in range(10)]  # each is first seen in its step
    watched = autofit.watch(batches, show=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in watched:
        torch.autograd.backward(model(batch).sum())
        optimizer.step()
        optimizer.zero_grad()
    assert watched.diagnosis is not None
    assert watched.diagnosis.notes == ()


def test_its_length_is_that_of_the_loader() -> None:
    assert len(autofit.watch(make(5)[2])) == 5
    with pytest.raises(TypeError):
        len(autofit.watch(each for each in range(3)))


def test_the_second_pass_is_not_observed(capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer, loader = make(STEPS + 1)
    watched = autofit.watch(loader)
    train(watched, model, optimizer)
    first = watched.diagnosis
    assert "the loop: watched" in capsys.readouterr().out
    train(watched, model, optimizer)
    assert watched.diagnosis is first
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("show", [True, False])
def test_the_result_is_printed_once_if_it_shall(show: bool, capsys: pytest.CaptureFixture[str]) -> None:
    model, optimizer, loader = make(STEPS + 1)
    watched = autofit.watch(loader, show=show)
    train(watched, model, optimizer)
    assert capsys.readouterr().out == (f"{watched.diagnosis}\n" if show else "")


def test_a_script_ends_by_enough_after_its_last_step() -> None:
    model, optimizer, loader = make()
    observer = ScriptObserver("train.py")
    with pytest.raises(Enough), observer:
        train(loader, model, optimizer)
    assert observer.updates == STEPS + 1
    assert observer.diagnosis is not None
    assert (observer.diagnosis.target, observer.diagnosis.steps) == ("train.py", STEPS)
    assert observer.diagnosis.notes == ()


def test_a_script_that_catches_it_is_ended_at_the_next_update() -> None:
    model, optimizer, loader = make()
    observer, caught = ScriptObserver("train.py"), 0
    with observer:
        for _ in range(2):
            try:
                train(loader, model, optimizer)
            except BaseException as error:
                caught += isinstance(error, Enough)
    assert caught == 2


def test_of_two_optimizers_the_first_ends_a_step() -> None:
    models, loader = [make()[0] for _ in range(2)], make()[2]
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in models]
    observer = ScriptObserver("gan.py")

    def train_both() -> None:
        for inputs, targets in loader:
            for model, optimizer in zip(models, optimizers, strict=True):
                torch.autograd.backward(F.cross_entropy(model(inputs), targets))
                optimizer.step()
                optimizer.zero_grad()

    with pytest.raises(Enough), observer:
        train_both()
    assert observer.updates == STEPS + 1
    assert shown(observer.diagnosis) == []


@pytest.mark.parametrize(
    ("error", "note", "failed"),
    [
        (ValueError("damaged"), "the script failed: ValueError: damaged", True),
        (SystemExit(3), "the script failed: SystemExit: 3", True),
        (SystemExit(0), INCOMPLETE, False),
        (None, INCOMPLETE, False),
    ],
)
def test_a_script_that_ends_before_says_so(error: BaseException | None, note: str, failed: bool) -> None:
    model, optimizer, loader = make(4)
    observer = ScriptObserver("train.py")
    with suppress(ValueError, SystemExit), observer:
        train(loader, model, optimizer)
        if error is not None:
            raise error
    assert observer.diagnosis is not None
    assert (observer.diagnosis.notes, observer.diagnosis.failed) == ((note,), failed)


def test_a_script_without_updates_has_no_diagnosis() -> None:
    with ScriptObserver("train.py") as observer:
        make()[0](torch.randn(2, 16))
    assert (observer.updates, observer.diagnosis) == (0, None)
