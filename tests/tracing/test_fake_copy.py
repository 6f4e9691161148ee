import hashlib
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

from autofit.core.errors import WorkloadError
from autofit.tracing.fake_copy import fake_batch, fake_mode, fake_workload
from autofit.workloads.update import rule_of_update
from autofit.workloads.workload import Workload
from tests.tracing.tiny import Cnn, Gpt, images, words, workload
from tests.workloads import gans

CPU = torch.device("cpu")


def digest(module: nn.Module) -> str:
    found = hashlib.sha256()
    for name, tensor in module.state_dict().items():
        found.update(name.encode() + tensor.numpy().tobytes())
    return found.hexdigest()


def shadowed(model: nn.Module, batch: object, **more: object) -> Workload:
    made, rule = workload(model, batch, **more)  # type: ignore[arg-type]
    with fake_mode():
        return fake_workload(made, rule, batch, CPU).workload


def test_every_tensor_is_fake_and_ties_are_kept() -> None:
    model = Gpt()
    copied: Any = shadowed(model, words(2)).model
    assert all(isinstance(p, FakeTensor) and isinstance(p, nn.Parameter) for p in copied.parameters())
    assert copied.head.weight is copied.words.weight
    assert [(n, p.shape, p.dtype) for n, p in copied.named_parameters()] == [
        (n, p.shape, p.dtype) for n, p in model.named_parameters()
    ]


def test_buffers_strides_and_flags_are_kept() -> None:
    model: Any = Cnn()
    model.to(memory_format=torch.channels_last)
    model.stem.weight.requires_grad = False
    model.eval()
    copied: Any = shadowed(model, images(2)).model
    assert copied.stem.weight.stride() == model.stem.weight.stride()
    assert not copied.stem.weight.requires_grad
    assert not copied.training
    assert isinstance(copied.blocks[0].norm.num_batches_tracked, FakeTensor)


def test_the_users_model_is_not_touched() -> None:
    model = Cnn()
    before, tensors = digest(model), [id(t) for t in (*model.parameters(), *model.buffers())]
    shadowed(model, images(2))
    assert digest(model) == before
    assert [id(t) for t in (*model.parameters(), *model.buffers())] == tensors


def test_attributes_of_parameters_and_plain_tensors_are_copied() -> None:
    model: Any = Cnn()
    model.stem.weight.no_decay = True
    model.scale = torch.ones(3)
    copied: Any = shadowed(model, images(2)).model
    assert copied.stem.weight.no_decay is True
    assert isinstance(copied.scale, FakeTensor)


def test_views_of_one_storage_share_it() -> None:
    flat = torch.zeros(12)
    model = nn.Linear(2, 4)
    model.weight, model.bias = nn.Parameter(flat[:8].view(4, 2)), nn.Parameter(flat[8:])
    copied: Any = shadowed(model, (torch.zeros(2, 2), torch.zeros(2, dtype=torch.long))).model
    assert copied.weight.untyped_storage()._cdata == copied.bias.untyped_storage()._cdata
    assert copied.bias.storage_offset() == 8


def test_an_optimizer_instance_is_rebuilt_with_its_options_and_state() -> None:
    model = Gpt()
    decayed, other = list(model.parameters())[:2], list(model.parameters())[2:]
    groups: list[dict[str, Any]] = [{"params": decayed, "weight_decay": 0.5}, {"params": other}]
    own = torch.optim.AdamW(groups, lr=0.25, amsgrad=True)
    model(words(2)[0]).sum().backward()
    own.step()
    copied = shadowed(model, words(2), optimizer=own)
    made = copied.make_optimizer()
    assert type(made) is torch.optim.AdamW
    assert made is not own
    assert [(g["weight_decay"], g["lr"], g["amsgrad"]) for g in made.param_groups] == [
        (0.5, 0.25, True),
        (0.01, 0.25, True),
    ]
    first = made.param_groups[0]["params"][0]
    assert first is next(iter(copied.model.parameters()))
    assert isinstance(made.state[first]["max_exp_avg_sq"], FakeTensor)
    assert not isinstance(own.state[decayed[0]]["exp_avg"], FakeTensor)


def test_a_recipe_gets_the_fake_parameters() -> None:
    seen: list[nn.Parameter] = []

    def recipe(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
        seen.extend(parameters)
        return torch.optim.SGD(seen, lr=0.1)

    shadowed(Gpt(), words(2), optimizer=recipe).make_optimizer()
    assert seen
    assert all(isinstance(p, FakeTensor) for p in seen)


def test_a_loss_module_is_copied_too() -> None:
    model, batch = Cnn(), images(2)
    loss_fn = nn.CrossEntropyLoss(weight=torch.ones(10))
    made = Workload(model, [batch], loss_fn=loss_fn)
    with fake_mode():
        fake = fake_batch(batch, 2, CPU)
        found = fake_workload(made, workload(model, batch)[1], fake, CPU)
        assert isinstance(found.loss.compute(found.workload.model, fake), FakeTensor)
        fake_loss: Any = found.workload.loss_fn
        assert isinstance(fake_loss.weight, FakeTensor)
    assert not isinstance(loss_fn.weight, FakeTensor)


def test_what_cannot_be_copied_is_named() -> None:
    model: Any = Cnn()
    model.lines = (line for line in "ab")
    with pytest.raises(WorkloadError, match=r"cannot be copied: TypeError.*generator"):
        shadowed(model, images(2))


def test_sparse_parameters_are_refused() -> None:
    model = Cnn()
    model.extra = nn.Parameter(torch.eye(3).to_sparse())
    with pytest.raises(WorkloadError, match="sparse_coo"):
        shadowed(model, images(2))


def test_a_batch_of_any_size() -> None:
    with fake_mode():
        made = fake_batch({"x": torch.zeros(2, 3), "y": torch.zeros(2, dtype=torch.long), "n": 5}, 7, CPU)
    assert made["x"].shape == (7, 3)
    assert made["y"].dtype is torch.long
    assert made["n"] == 5


def test_a_batch_keeps_its_layout() -> None:
    with fake_mode():
        made = fake_batch(torch.zeros(2, 3, 4, 4).contiguous(memory_format=torch.channels_last), 5, CPU)
    assert made.is_contiguous(memory_format=torch.channels_last)


def test_a_batch_with_a_tensor_for_all_samples_keeps_its_size() -> None:
    batch = {"x": torch.zeros(2, 3), "classes": torch.zeros(9)}
    with fake_mode():
        assert fake_batch(batch, 2, CPU)["classes"].shape == (9,)
        with pytest.raises(WorkloadError, match=r"\[9\].*expected one entry per sample"):
            fake_batch(batch, 3, CPU)


def test_several_optimizers_are_copied_with_the_parameters_of_their_models() -> None:
    made = gans.workload()
    with fake_mode():
        copied = fake_workload(made, rule_of_update(gans.update), (), CPU).workload
    assert isinstance(copied.optimizer, dict)
    held = [p for each in copied.optimizer.values() for group in each.param_groups for p in group["params"]]
    assert {id(p) for p in held} == {id(p) for p in copied.model.parameters()}
    assert all(isinstance(p, FakeTensor) for p in held)
    assert copied.optimizer["critic"] is not made.optimizer["critic"]  # type: ignore[index]
