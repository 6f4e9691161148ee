from typing import Any

import torch
from torch import nn

from autofit.memory.trace import Kind
from autofit.tracing.fake_copy import fake_mode
from autofit.tracing.recorder import Recorder


def run(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


def recorder(**more: object) -> Recorder:
    return Recorder("cpu", run, **more)  # type: ignore[arg-type]


def sizes(found: Recorder) -> list[int]:
    """Returns the events as bytes, negative for a release."""
    return [found.sizes[e] if e >= 0 else -found.sizes[~e] for e in found.events]


def test_a_storage_is_recorded_once_and_released_with_its_last_tensor() -> None:
    found = recorder()
    with fake_mode(), found:
        x = torch.empty(10)
        view = x.view(2, 5)[1]
        del x
        y = torch.empty(3)
        del view
    assert sizes(found) == [40, 12, -40]
    del y
    assert sizes(found) == [40, 12, -40, -12]


def test_in_place_and_out_allocate_nothing() -> None:
    found = recorder()
    with fake_mode(), found:
        x, y = torch.empty(10), torch.empty(10)
        x.add_(1)
        torch.add(x, 1, out=y)
    assert sizes(found)[:2] == [40, 40]
    assert max(found.events) == 1


def test_a_storage_that_grows_is_a_new_one() -> None:
    found = recorder()
    with fake_mode(), found:
        x = torch.empty(2)
        x.resize_(8)
        assert sizes(found) == [8, 32, -8]
    del x
    assert sizes(found) == [8, 32, -8, -32]


def test_other_devices_are_not_recorded() -> None:
    found = Recorder("meta", run)
    with fake_mode(), found:
        torch.empty(10)
    assert found.events == []


def test_real_tensors_work_too() -> None:
    found = recorder()
    with found:
        x = torch.ones(10) + 1
    assert x.sum() == 20
    assert sizes(found)[0] == 40


def test_what_the_users_code_holds_was_there_before() -> None:
    held, found = torch.ones(5), recorder()
    with fake_mode(), found:
        y = torch.empty(5) * held
        y = y * held
    assert [found.sizes[handle] for handle in found.initial] == [20]
    assert found.kinds[found.initial[0]] is Kind.BUFFER
    assert found.initial[0] not in found.events
    assert torch.equal(held, torch.ones(5))


def test_each_thread_takes_its_workspaces_once() -> None:
    found = recorder(workspaces=(1000, 10))
    layer = nn.Linear(4, 4)
    with found:
        layer(layer(torch.ones(2, 4))).sum().backward()
        layer(torch.ones(2, 4)).sum().backward()
    taken = [size for size, kind in zip(found.sizes, found.kinds, strict=True) if kind is Kind.WORKSPACE]
    assert taken == [1000, 10, 1000]


def test_steps_of_an_operator_are_around_its_result() -> None:
    aten = torch.ops.aten

    def temporaries(func: Any, args: Any, out: Any) -> tuple[int | None, ...]:
        return (7, ~0, 8, None, 9, ~2, ~1) if func is aten.relu.default else ()

    found = recorder(temporaries=temporaries)
    with fake_mode(), found:
        x = torch.empty(5)
        y = torch.relu(x)
    assert sizes(found) == [20, 7, -7, 8, 20, 9, -9, -8]
    del x, y


def test_steps_without_a_place_for_the_result_come_after_it() -> None:
    found = recorder(temporaries=lambda func, args, out: (7, ~0))
    with fake_mode(), found:
        x = torch.empty(5)
    assert sizes(found) == [20, 7, -7]
    del x


def test_inside_inference_mode_composites_are_taken_apart() -> None:
    found = recorder()
    with found, torch.inference_mode():
        x = torch.ones(2, 3, 4)
        torch.nn.functional.linear(x, torch.ones(5, 4), torch.ones(5))
    assert "aten::linear" not in found.operators
    assert 2 * 3 * 5 * 4 in found.sizes


def test_what_leaves_nothing_behind_can_be_repeated() -> None:
    found = recorder()
    with fake_mode(), found:
        kept = torch.empty(1)
        begun = len(found.events)
        x = torch.empty(10)
        y = torch.empty(20)
        del x
        del y
        assert found.repeat(begun)
    assert sizes(found) == [4, 40, 80, -40, -80, 40, 80, -40, -80]
    assert max(found.events) == 4
    del kept
    assert sizes(found)[-1] == -4


def test_what_leaves_something_behind_is_not_repeated() -> None:
    found = recorder()
    with fake_mode(), found:
        old = torch.empty(1)
        begun = len(found.events)
        kept = torch.empty(10)
        before = list(found.events)
        assert not found.repeat(begun)
        begun = len(found.events)
        del old
        assert not found.repeat(begun)
    assert found.events[:2] == before
    assert len(found.sizes) == 2
    del kept


def test_results_may_come_one_by_one_between_what_is_taken() -> None:
    found = recorder(temporaries=lambda func, args, out: (100, None, ~0, None, 7, ~1))
    with fake_mode(), found:
        x = torch.empty(10)
        values, places = x.max(0)
    assert sizes(found)[-6:] == [100, 4, -100, 8, 7, -7]
    del values, places
