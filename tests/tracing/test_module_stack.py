"""Which module makes an allocation."""

from threading import Thread
from typing import Any

import torch
from torch import nn

from autofit.tracing.recorder import Recorder


def run(func: Any, args: Any, kwargs: Any) -> Any:
    return func(*args, **kwargs)


def recorder(**more: object) -> Recorder:
    return Recorder("cpu", run, **more)  # type: ignore[arg-type]


def test_modules_own_what_their_passes_make() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    found = recorder()
    with found.modules.following(model) as names, found:
        x = torch.ones(3, 4)
        loss = model(x).sum()
        forward = len(found.sizes)
        loss.backward()
    assert names == ["", "0", "1", "2"]
    by_name = [names[o] if o >= 0 else None for o in found.origins]
    assert by_name[0] is None
    assert set(by_name[:forward]) >= {"0", "1", "2"}
    # The weight gradient of a layer is made in its own backward pass: 4 x 8 and 8 x 2 numbers.
    made = {(name, size) for name, size in zip(by_name[forward:], found.sizes[forward:], strict=True)}
    assert ("0", 128) in made
    assert ("2", 64) in made


def test_several_models_are_told_apart_by_a_prefix_and_shared_modules_have_one_name() -> None:
    first, found = nn.Sequential(nn.Linear(2, 2)), recorder()
    with found.modules.following(first) as names:
        found.modules.add(nn.Sequential(first[0], nn.ReLU()), "second")
        found.modules.add(first)
    assert names == ["", "0", "second", "second.1"]


def test_hooks_are_taken_off_again() -> None:
    from torch.nn.modules import module as hooks  # noqa: PLC0415

    before = len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks)
    with recorder().modules.following(nn.Linear(2, 2)):
        assert len(hooks._global_forward_hooks) == before[0] + 1
    assert (len(hooks._global_forward_hooks), len(hooks._global_forward_pre_hooks)) == before


def test_calls_of_other_threads_do_not_count() -> None:
    model, inside = nn.Sequential(nn.Linear(2, 2)), list[int]()
    found = recorder()
    with found.modules.following(model):
        model[0].register_forward_pre_hook(lambda *given: inside.append(found.modules.current()))
        model(torch.ones(1, 2))
        thread = Thread(target=model, args=(torch.ones(1, 2),))
        thread.start()
        thread.join()
    assert inside == [1, -1]
