"""Channels last: what is offered, that convolutions see it, and that every stride comes back."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from autofit.core.errors import SpaceError
from autofit.core.plan import Plan
from autofit.prepare import prepare
from autofit.strategies.base import Facts
from autofit.strategies.memory_format import MemoryFormat
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft

LAST = Plan(values={"memory_format": "channels_last"})
RULE = LossRule("step_fn", lambda model, batch: model(batch).square().mean(), False, "")


class Net(nn.Module):
    """Has a plain, a 1x1, a one-channel, a depthwise and a transposed convolution, and a 4-d buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            # Under batch norm a bias has no gradient but rounding errors, which Adam would blow up.
            nn.Conv2d(3, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.Conv2d(8, 8, 1),
            nn.Conv2d(8, 8, 3, groups=8),
            nn.ConvTranspose2d(8, 4, 2, stride=2),
            nn.Conv2d(4, 1, 1),
            nn.Conv2d(1, 4, 3),
        )
        self.register_buffer("mask", torch.rand(1, 3, 6, 6))
        self.mask: torch.Tensor

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layers(images * self.mask).flatten(1)
        return output


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def images() -> torch.Tensor:
    return torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(1))


def adam(model: nn.Module, **options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.05, **options)


def draft(model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> Draft:
    return Draft(model, RULE, optimizer or adam(model), torch.device("cpu"))


def facts(model: nn.Module) -> Facts:
    return Facts(
        model=model,
        batch=(images(), torch.zeros(2, dtype=torch.long)),
        optimizer=None,
        device_type="cpu",
        capabilities=frozenset({"channels_last"}),
        numerics="exact",
        training=True,
        micro_batch_size=2,
    )


def named(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def strides(model: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tensor.stride() for name, tensor in named(model).items()}


def reason(given: Facts) -> str:
    offer = MemoryFormat().offer(given)
    assert offer.knobs == ()
    assert [refusal.name for refusal in offer.refused] == ["memory_format"]
    return offer.refused[0].reason


def test_convolutions_over_images_are_offered_both_layouts() -> None:
    (knob,) = MemoryFormat().offer(facts(net())).knobs
    assert (knob.values, knob.default) == (("default", "channels_last"), "default")


def test_offer_is_refused_with_the_reason() -> None:
    given = facts(net())
    assert "no 2-d convolution" in reason(facts(nn.Sequential(nn.Linear(2, 2), nn.Conv1d(2, 2, 1))))
    assert "no 4-d" in reason(replace(given, batch=torch.zeros(2, 3)))
    assert "no list of 3-d" in reason(replace(given, batch=[]))
    assert "no list of 3-d" in reason(replace(given, batch=(torch.zeros(2, 3, 6), torch.zeros(2))))
    assert "no list of 3-d" in reason(replace(given, batch={"x": torch.zeros(2, 3, 6)}))
    assert "no list of 3-d" in reason(replace(given, batch=[torch.zeros(3, 6, 6, dtype=torch.uint8)] * 2))
    assert "no 2-d convolution" in reason(replace(facts(nn.Linear(2, 2)), batch=[torch.zeros(3, 6, 6)] * 2))
    assert "no 4-d" in reason(replace(given, batch=torch.zeros(2, 3, 6, 6, dtype=torch.uint8)))
    assert "device has no channels_last" in reason(replace(given, capabilities=frozenset()))
    model = net().to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch has no type for it
    assert "already" in reason(facts(model))


SCENES = [torch.zeros(3, 6, 7), torch.zeros(3, 8, 6)]
BOXES = [{"boxes": torch.zeros(1, 4)}, {"boxes": torch.zeros(2, 4)}]


@pytest.mark.parametrize(
    "batch",
    [
        SCENES,
        (tuple(SCENES), tuple(BOXES)),
        {"images": SCENES, "targets": BOXES},
        list(zip(SCENES, BOXES, strict=True)),
        [{"image": image, **boxes} for image, boxes in zip(SCENES, BOXES, strict=True)],
    ],
    ids=["list", "columns", "dict", "rows", "list of dicts"],
)
def test_images_of_many_sizes_in_a_list_are_offered_both_layouts(batch: Any) -> None:
    (knob,) = MemoryFormat().offer(replace(facts(net()), batch=batch)).knobs
    assert knob.values == ("default", "channels_last")


class Detector(Net):
    """Pads and stacks a list of images itself."""

    def forward(self, scenes: Any) -> torch.Tensor:
        height, width = (max(scene.shape[at] for scene in scenes) for at in (1, 2))
        padded = [nn.functional.pad(s, (0, width - s.shape[2], 0, height - s.shape[1])) for s in scenes]
        output: torch.Tensor = self.layers(torch.stack(padded)).mean((2, 3))
        return output


def test_images_that_the_model_stacks_are_convolved_in_the_layout_of_the_weights() -> None:
    """The input is contiguous, and each convolution's output is channels last all the same."""
    torch.manual_seed(0)
    model, seen = Detector(), []
    scenes = [torch.randn(3, 9, 8), torch.randn(3, 8, 9)]
    convolutions = [layer for layer in model.layers if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d)]
    # The outputs of one channel, and what follows, have a layout that is both.
    for layer in convolutions[:4]:
        layer.register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], output)))
    expected = RULE.compute(model, scenes).detach()
    assert all(output.is_contiguous() for _, output in seen)
    seen.clear()
    with prepare(LAST, draft(model), [MemoryFormat()]) as step:
        torch.testing.assert_close(step(scenes), expected, rtol=1e-4, atol=1e-6)
    assert seen[0][0].is_contiguous()
    for _, output in seen:
        assert output.is_contiguous(memory_format=torch.channels_last)
        assert not output.is_contiguous()


def test_lazy_convolutions_are_not_looked_into() -> None:
    assert "no 2-d convolution" in reason(facts(nn.LazyConv2d(4, 3)))


def test_spectral_norm_is_left_unstepped_by_the_offer() -> None:
    model = torch.nn.utils.parametrizations.spectral_norm(nn.Conv2d(3, 4, 3))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    assert MemoryFormat().offer(facts(model)).knobs
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_in_shared_memory_are_left_alone() -> None:
    first, second = nn.Conv2d(3, 3, 3), nn.Conv2d(3, 3, 3)
    second.weight = nn.Parameter(first.weight.data)
    model = nn.Sequential(first, second)
    assert "share memory" in reason(facts(model))
    flat = torch.randn(3 * 3 * 3 * 3 + 5)
    only = nn.Conv2d(3, 3, 3)
    only.weight = nn.Parameter(flat[: 3 * 3 * 3 * 3].view(3, 3, 3, 3))
    assert "share memory" in reason(facts(only))
    for shared in (model, only, nn.Linear(2, 2)):
        with pytest.raises(SpaceError, match="its own memory"), MemoryFormat().apply(LAST, draft(shared)):
            pass


def test_weights_that_something_else_looks_into_are_left_alone() -> None:
    """D4 (b): a `.data` alias or a flat buffer would see the order of the values change under it."""
    layer = nn.Conv2d(3, 3, 3, bias=False)
    alias = layer.weight.data
    assert "share memory" in reason(facts(layer))
    with pytest.raises(SpaceError, match="its own memory"), MemoryFormat().apply(LAST, draft(layer)):
        pass
    del alias
    assert MemoryFormat().offer(facts(layer)).knobs


def test_every_tensor_keeps_its_address() -> None:
    """Defect 1: views and pointers that others hold stay valid."""
    model = net()
    optimizer = adam(model)
    prepare(Plan(), draft(model, optimizer), [])(images())
    RULE.compute(model, images()).backward()  # type: ignore[no-untyped-call]  # torch has no types here

    def addresses() -> list[int]:
        state = [value for entry in optimizer.state.values() for value in entry.values()]
        tensors = [*named(model).values(), *(p.grad for p in model.parameters()), *state]
        return [tensor.data_ptr() for tensor in tensors if isinstance(tensor, torch.Tensor)]

    before, layout = addresses(), strides(model)
    with MemoryFormat().apply(LAST, draft(model, optimizer)):
        assert strides(model) != layout
        assert addresses() == before
    assert addresses() == before


def test_one_module_used_twice_is_no_shared_memory() -> None:
    layer = nn.Conv2d(3, 3, 3)
    assert MemoryFormat().offer(facts(nn.Sequential(layer, layer))).knobs


def test_convolutions_get_weights_and_inputs_in_channels_last() -> None:
    model, seen = net(), []
    model.layers[0].register_forward_hook(lambda module, inputs, output: seen.append((inputs[0], output)))
    made = draft(model)
    with prepare(LAST, made, [MemoryFormat()]) as step:
        assert made.memory_format is torch.channels_last
        for layer in model.layers:
            if isinstance(layer, nn.Conv2d | nn.ConvTranspose2d):
                assert layer.weight.is_contiguous(memory_format=torch.channels_last)
        assert model.get_parameter("layers.0.weight").stride() == (27, 1, 9, 3)
        assert model.mask.stride() == (108, 1, 18, 3)
        step(images())
    for tensor in seen[0]:
        assert tensor.is_contiguous(memory_format=torch.channels_last)
        assert not tensor.is_contiguous()
    assert made.memory_format is None


@pytest.mark.parametrize("way", [{"foreach": False}, {"foreach": True}, {"fused": True}], ids=str)
def test_training_is_the_same_up_to_rounding(way: dict[str, bool]) -> None:
    plain, last = net(), net()
    optimizers = [adam(model, **way) for model in (plain, last)]
    # State and gradients of the user's own, with the strides of his layout.
    for model, optimizer in zip((plain, last), optimizers, strict=True):
        prepare(Plan(), draft(model, optimizer), [])(images())
        RULE.compute(model, images()).backward()  # type: ignore[no-untyped-call]  # torch has no types here
    with prepare(LAST, draft(last, optimizers[1]), [MemoryFormat()]) as step:
        other = prepare(Plan(), draft(plain, optimizers[0]), [])
        for _ in range(3):
            torch.testing.assert_close(step(images()), other(images()), rtol=1e-4, atol=1e-6)
    for name, tensor in named(last).items():
        torch.testing.assert_close(tensor, named(plain)[name], rtol=1e-3, atol=1e-5)


def test_leaving_gives_every_tensor_its_strides_and_keeps_the_objects() -> None:
    model = net()
    small, depthwise = model.get_parameter("layers.2.weight"), model.get_parameter("layers.3.weight")
    small.data = small.data.as_strided((8, 8, 1, 1), (8, 1, 8, 8))
    depthwise.data = torch.empty_strided((8, 1, 3, 3), (9, 9, 1, 3)).copy_(depthwise)
    optimizer = adam(model)
    before, objects = strides(model), {name: id(tensor) for name, tensor in named(model).items()}
    with prepare(LAST, draft(model, optimizer), [MemoryFormat()]) as step:
        assert strides(model) != before
        step(images())
        RULE.compute(model, images()).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        values = {name: tensor.detach().clone() for name, tensor in named(model).items()}
        gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    assert strides(model) == before
    assert {name: id(tensor) for name, tensor in named(model).items()} == objects
    assert all(torch.equal(tensor, values[name]) for name, tensor in named(model).items())
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.equal(parameter.grad, gradients[name])
        assert parameter.grad.stride() == parameter.stride()
        assert optimizer.state[parameter]["exp_avg"].stride() == parameter.stride()


def test_state_and_gradient_of_the_user_come_back_as_the_same_tensors() -> None:
    model = net()
    optimizer = adam(model)
    prepare(Plan(), draft(model, optimizer), [])(images())
    weight = model.get_parameter("layers.0.weight")
    state = optimizer.state[weight]
    state["exp_avg"] = state["exp_avg"].as_strided((8, 3, 3, 3), (27, 9, 1, 3)).clone()
    weight.grad = gradient = torch.randn(8, 3, 3, 3)
    kept, values = state["exp_avg"], (state["exp_avg"].clone(), gradient.clone())
    with MemoryFormat().apply(LAST, draft(model, optimizer)):
        assert kept.stride() == gradient.stride() == weight.stride() == (27, 1, 9, 3)
    assert state["exp_avg"] is kept
    assert weight.grad is gradient
    assert (kept.stride(), gradient.stride()) == ((27, 9, 1, 3), (27, 9, 3, 1))
    assert torch.equal(kept, values[0])
    assert torch.equal(gradient, values[1])


def test_a_graph_that_the_user_holds_can_still_go_backward() -> None:
    model = net().eval()
    loss = RULE.compute(model, images())
    with MemoryFormat().apply(LAST, draft(model)):
        pass
    loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here
    expected = net().eval()
    RULE.compute(expected, images()).backward()  # type: ignore[no-untyped-call]  # torch has no types here
    torch.testing.assert_close(model.layers[0].weight.grad, expected.layers[0].weight.grad)


def test_an_error_inside_undoes_too() -> None:
    model = net()
    made, before = draft(model), strides(model)
    with pytest.raises(KeyError), MemoryFormat().apply(LAST, made):
        raise KeyError
    assert strides(model) == before
    assert made.memory_format is None


def test_five_dimensions_are_left_alone() -> None:
    model = nn.ModuleList([nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3)])
    before = strides(model)
    with MemoryFormat().apply(LAST, draft(model)):
        now = strides(model)
        assert now["1.weight"] == before["1.weight"]
        assert now["0.weight"] != before["0.weight"]


@pytest.mark.parametrize("value", ["nhwc", 1, True])
def test_unknown_value_is_turned_away(value: str | int) -> None:
    plan = Plan(values={"memory_format": value})
    with pytest.raises(SpaceError, match="memory_format="), MemoryFormat().apply(plan, draft(net())):
        pass
