"""The exported loop is run, and the weights after it are those of a loop written by hand."""

import copy
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

from autofit.core.environment import RANKS
from autofit.core.errors import PlanFileError
from autofit.core.loading import Loading, LoadingTrial
from autofit.core.plan import KnobValue
from autofit.exporters import by_name
from autofit.exporters.base import Export
from autofit.tracing.ranks import fake_ranks
from autofit.workloads.counted_batches import counted
from autofit.workloads.resized_samplers import LengthBatches
from autofit.workloads.sources import source_of
from tests.conformance.test_exporters import OWN, answer


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(6, 6)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return x + F.dropout(torch.tanh(self.line(x)), 0.2, self.training)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(2, 6, 3)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(6, 3)
        self.layouts: list[bool] = []
        self.dtypes: list[torch.dtype] = []

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        self.layouts.append(images.is_contiguous(memory_format=torch.channels_last))
        x = self.stem(images).mean((2, 3))
        self.dtypes.append(x.dtype)
        for block in self.blocks:
            x = block(x)
        output: torch.Tensor = self.head(x)
        return output


def compute_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    inputs, targets = batch
    return F.cross_entropy(model(inputs), targets)


def net() -> Net:
    torch.manual_seed(0)
    return Net()


def loader(micro_batch_size: int) -> DataLoader[Any]:
    """22 samples: neither micro batches nor steps come out even."""
    torch.manual_seed(1)
    images, targets = torch.randn(22, 2, 4, 5), torch.randint(3, (22,))
    return DataLoader(TensorDataset(images, targets), batch_size=micro_batch_size)


def export(settings: dict[str, str] | None = None, **values: KnobValue) -> Export:
    return by_name("python").export(answer(OWN.replace(**values), settings=settings or {}))


def module_of(text: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(text, "train_loop.py", "exec"), names)
    return names


def steps_by_hand(batches: list[Any], accumulation_steps: int) -> Iterator[list[Any]]:
    for start in range(0, len(batches), accumulation_steps):
        yield batches[start : start + accumulation_steps]


def train_by_hand(
    model: nn.Module,
    batches: DataLoader[Any],
    optimizer: torch.optim.Optimizer,
    accumulation_steps: int = 1,
    dtype: torch.dtype | None = None,
    clip: float | None = None,
    scaled: bool = False,
) -> None:
    scaler = torch.amp.GradScaler("cpu", enabled=scaled)
    for _ in range(2):
        for parts in steps_by_hand(list(batches), accumulation_steps):
            count = sum(len(targets) for _, targets in parts)
            for inputs, targets in parts:
                with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
                    loss = F.cross_entropy(model(inputs), targets, reduction="mean")
                scaler.scale(loss * len(targets) / count).backward()  # type: ignore[no-untyped-call]  # torch has no types here
            scaler.unscale_(optimizer)
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()


def make_optimizer(model: nn.Module, **flags: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.01, **flags)


def run_both(text: str, micro_batch_size: int, by_hand: dict[str, Any], **more: Any) -> tuple[Net, Net]:
    """Returns the model after the exported loop, and the one after the loop by hand."""
    module = module_of(text)
    exported, expected = net().eval(), net()
    more = {name: (value(exported) if callable(value) else value) for name, value in more.items()}
    optimizer = make_optimizer(exported, **module.get("OPTIMIZER_FLAGS", {}))
    torch.manual_seed(2)
    module["train"](exported, loader(module["MICRO_BATCH_SIZE"]), optimizer, compute_loss, epochs=2, **more)
    torch.manual_seed(2)
    train_by_hand(expected, loader(micro_batch_size), make_optimizer(expected), **by_hand)
    return exported, expected


def assert_same_weights(model: nn.Module, other: nn.Module, **tolerance: Any) -> None:
    for (name, value), (_, wanted) in zip(model.named_parameters(), other.named_parameters(), strict=True):
        torch.testing.assert_close(value, wanted, msg=partial("{}: {}".format, name), **tolerance)
    start = net()
    assert any(not torch.equal(value, own) for value, own in zip(model.parameters(), start.parameters(), strict=True))


def test_the_plan_that_changes_nothing() -> None:
    exported = export()
    assert exported.unmapped == ()
    assert "autocast" not in exported.text
    assert_same_weights(*run_both(exported.text, 8, {}), rtol=0, atol=0)


def test_accumulation_is_the_mean_over_the_samples_of_a_step_also_in_the_last_one() -> None:
    exported = export(micro_batch_size=4, accumulation_steps=2)
    assert_same_weights(*run_both(exported.text, 4, {"accumulation_steps": 2}))


def test_accumulation_gives_the_gradient_of_the_large_batch() -> None:
    text = export(micro_batch_size=3, accumulation_steps=8).text  # one step of 22 samples, the last part of 1
    module = module_of(text)
    model, whole = net().requires_grad_(True), net()
    for block in [*model.blocks, *whole.blocks]:
        block.eval()  # no dropout
    gradients: list[list[torch.Tensor]] = []

    class Spy(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]  # it returns no loss
            gradients.append([p.grad.clone() for group in self.param_groups for p in group["params"]])

    model.train = lambda mode=True: model  # type: ignore[method-assign]  # keeps dropout off
    module["train"](model, loader(3), Spy(model.parameters(), lr=0.1), compute_loss)
    compute_loss(whole, next(iter(loader(22)))).backward()  # type: ignore[no-untyped-call]  # torch has no types here
    (mine,) = gradients
    for gradient, parameter in zip(mine, whole.parameters(), strict=True):
        torch.testing.assert_close(gradient, parameter.grad)


def test_bf16_autocast() -> None:
    exported, expected = run_both(export(precision="bf16").text, 8, {"dtype": torch.bfloat16})
    assert set(exported.dtypes) == {torch.bfloat16}
    assert_same_weights(exported, expected, rtol=0, atol=0)


def test_fp16_with_scaler_and_clipping() -> None:
    text = export({"max_grad_norm": "0.1"}, precision="fp16", accumulation_steps=2).text
    by_hand = {"dtype": torch.float16, "clip": 0.1, "scaled": True, "accumulation_steps": 2}
    exported, expected = run_both(text, 8, by_hand)
    assert set(exported.dtypes) == {torch.float16}
    assert_same_weights(exported, expected, rtol=1e-4, atol=1e-5)


def test_clipping_without_scaler() -> None:
    exported, expected = run_both(export({"max_grad_norm": "0.05"}).text, 8, {"clip": 0.05})
    assert_same_weights(exported, expected, rtol=0, atol=0)


def test_the_first_blocks_run_again_in_backward_with_the_same_dropout() -> None:
    text = export(checkpointed_blocks=2, accumulation_steps=2).text
    exported, expected = run_both(text, 8, {"accumulation_steps": 2}, blocks=lambda model: model.blocks)
    first, second, third = (vars(block)["calls"] for block in exported.blocks)
    assert first == second == 2 * third
    assert_same_weights(exported, expected)


def test_a_model_with_its_own_checkpointing_is_asked_for_it() -> None:
    model = net()
    asked: list[dict[str, Any]] = []
    model.gradient_checkpointing_enable = lambda **options: asked.append(options)  # type: ignore[assignment]  # a fake
    module_of(export(checkpointed_blocks=3).text)["train"](model, loader(8), make_optimizer(model), compute_loss)
    assert asked == [{"gradient_checkpointing_kwargs": {"use_reentrant": False}}]


def test_a_loop_does_not_switch_the_users_own_checkpointing_off() -> None:
    own = OWN.replace(checkpointed_blocks="default")
    for blocks in (0, 2):
        exported = by_name("python").export(answer(own.replace(checkpointed_blocks=blocks), own))
        assert exported.unmapped == ("checkpointed_blocks",)


def test_too_few_blocks_are_refused() -> None:
    model = net()
    module = module_of(export(checkpointed_blocks=3).text)
    with pytest.raises(ValueError, match="found 1 blocks, the plan checkpoints 3: pass blocks="):
        module["train"](model, loader(8), make_optimizer(model), compute_loss, blocks=model.blocks[:1])


@pytest.mark.parametrize("value", ["for-loop", "foreach", "fused"])
def test_optimizer_flags_and_channels_last(value: str) -> None:
    text = export(optimizer_implementation=value, memory_format="channels_last").text
    exported, expected = run_both(text, 8, {})
    assert all(exported.layouts)
    assert not any(expected.layouts)
    assert_same_weights(exported, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("given", ["foreach", "fused"])
@pytest.mark.parametrize("value", ["for-loop", "foreach", "fused"])
def test_d8_the_implementation_is_switched_however_the_optimizer_was_made(value: str, given: str) -> None:
    module, model = module_of(export(optimizer_implementation=value).text), net()
    optimizer = make_optimizer(model, **{given: True})
    optimizer.step()  # nothing has a gradient yet
    module["train"](model, loader(8), optimizer, compute_loss)
    flags = module["OPTIMIZER_FLAGS"]
    assert {flag: optimizer.param_groups[0][flag] for flag in flags} == flags
    assert all(state["step"].dtype is torch.float32 for state in optimizer.state.values())
    module["train"](model, loader(8), optimizer, compute_loss)  # with a state, as after a checkpoint was loaded
    other = net()
    by_hand = make_optimizer(other)
    for _ in range(2):
        module_of(export().text)["train"](other, loader(8), by_hand, compute_loss)
    assert_same_weights(model.eval(), other.eval(), rtol=1e-3, atol=1e-4)


def test_tf32_is_switched_on(tmp_path: Path) -> None:
    """In a process of its own: the switch stays on."""
    (tmp_path / "train_loop.py").write_text(export(precision="tf32").text)
    code = (
        "import torch, train_loop\n"
        "model = torch.nn.Linear(2, 1)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "train_loop.train(model, [torch.ones(4, 2)], optimizer, lambda model, batch: model(batch).sum())\n"
        "print(torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "tf32 tf32\n"


@pytest.mark.parametrize(("value", "line"), [(False, 0), (True, 1)])
def test_cudnn_benchmark_is_switched_on_before_the_first_step(value: bool, line: int) -> None:
    export_of = export(cudnn_benchmark=value)
    assert export_of.unmapped == ()
    before, _, _ = export_of.text.partition("model.train()")
    assert before.count("    torch.backends.cudnn.benchmark = True\n") == line


def test_batches_of_any_structure() -> None:
    module = module_of(export(micro_batch_size=2, accumulation_steps=2).text)
    batch = {"ids": ["a", "b"], "nested": (torch.ones(2, 3), None), "count": 7}
    assert module["size"](batch) == 2
    moved = module["to_device"](batch, torch.device("meta"))
    assert moved["nested"][0].device.type == "meta"
    assert (moved["ids"], moved["nested"][1], moved["count"]) == (["a", "b"], None, 7)


@dataclass(frozen=True)
class Graphs:
    nodes: torch.Tensor
    graph: torch.Tensor
    label: torch.Tensor


class Pair(NamedTuple):
    images: torch.Tensor
    targets: torch.Tensor


def images(count: int) -> torch.Tensor:
    return torch.ones(count, 3, 8, 8)


SIZES = [
    ((images(5), torch.ones(5)), 5),  # found to be 3, the channels
    (Pair(images(5), torch.ones(5)), 5),
    ({"input": images(5), "weights": torch.ones(7), "target": torch.ones(5)}, 5),
    ([{"image": torch.ones(3, n, 8)} for n in (4, 5)], 2),
    ([{"image": torch.ones(3, 8, 8)} for _ in range(2)], 2),
    (([torch.ones(3, n, 8) for n in (4, 5)], [{"boxes": torch.ones(n, 4)} for n in (1, 6)]), 2),
    ([images(5), torch.ones(5)], 5),
    (Graphs(torch.ones(4, 2), torch.ones(4), torch.ones(2)), 4),  # ready batches of graphs: what shapes tell
]


@pytest.mark.parametrize(("batch", "count"), SIZES)
def test_d8_the_samples_of_a_ready_batch(batch: Any, count: int) -> None:
    assert module_of(export(micro_batch_size=2, accumulation_steps=2).text)["size"](batch) == count


def graphs(samples: list[int]) -> Graphs:
    nodes = torch.cat([torch.full((count, 2), float(count)) for count in samples])
    which = torch.cat([torch.full((count,), at) for at, count in enumerate(samples)])
    return Graphs(nodes, which, torch.tensor(samples))


@pytest.mark.parametrize("workers", [0, 2])
def test_d2_what_is_collated_is_counted_and_not_guessed_from_shapes(workers: int) -> None:
    module = module_of(export(micro_batch_size=2, accumulation_steps=2).text)
    batches: DataLoader[Any] = DataLoader(
        [1, 2, 7, 1, 3],  # type: ignore[arg-type]  # a list is a data set
        batch_size=2,
        collate_fn=graphs,
        num_workers=workers,
        persistent_workers=bool(workers),
    )
    for _ in range(2):
        told = [[(samples, len(batch.nodes)) for samples, batch in step] for step in module["steps"](batches)]
        assert told == [[(2, 3), (2, 8)], [(1, 3)]]
        assert [type(batch) for batch in batches] == [Graphs] * 3  # the loader itself is as it was
    assert [[samples for samples, _ in step] for step in module["steps"](list(batches))] == [[3, 8], [3]]


def left_out(samples: list[int]) -> torch.Tensor:
    return torch.stack([torch.full((3,), float(sample)) for sample in samples if sample != 7])


def sequence_first(samples: list[int]) -> torch.Tensor:
    return torch.stack([torch.full((3,), float(sample)) for sample in samples], dim=1)


COLLATED: dict[str, Callable[[list[int]], Any]] = {
    "graphs": graphs,
    "damaged samples left out": left_out,
    "samples along the second axis": sequence_first,
}


@pytest.mark.parametrize("name", COLLATED)
def test_an_exported_loop_counts_samples_as_the_measured_step_does(name: str) -> None:
    collate = COLLATED[name]
    loader: DataLoader[Any] = DataLoader([1, 2, 7, 1, 3, 2, 4, 5, 6], batch_size=4, collate_fn=collate)  # type: ignore[arg-type]  # a list is a data set
    ready = list(loader)
    for given in (loader, ready):
        source = source_of(given)
        told = {} if source.has_rows else {"samples": "collated"}
        steps = module_of(export(told, micro_batch_size=4, accumulation_steps=3).text)["steps"]
        (found,) = [[samples for samples, _ in step] for step in steps(given)]
        wanted = [counted(batch).samples for batch in source.rebuild(source.user_batch_size, counted=True)]
        assert [count / sum(found) for count in found] == [count / sum(wanted) for count in wanted]


def test_an_incomplete_step_is_left_out_where_the_loader_drops_its_last_batch() -> None:
    module = module_of(export(micro_batch_size=2, accumulation_steps=2).text)
    for drop_last, steps in ((False, 3), (True, 2)):
        assert len(list(module["steps"](DataLoader(list(range(10)), batch_size=2, drop_last=drop_last)))) == steps  # type: ignore[arg-type]  # a list is a data set


def test_batches_are_moved_as_what_they_are() -> None:
    move = module_of(export(micro_batch_size=2, accumulation_steps=2).text)["to_device"]
    for batch, _ in SIZES:
        moved = move(batch, torch.device("cpu"))
        assert type(moved) is type(batch)
    batch = Graphs(torch.ones(4, 2), torch.ones(4), torch.ones(2))
    assert move(batch, torch.device("meta")).label.device.type == "meta"
    assert batch.label.device.type == "cpu"

    class Encoding(dict[str, torch.Tensor]):
        def to(self, device: torch.device) -> "Encoding":
            return Encoding({name: tensor.to(device) for name, tensor in self.items()})

    moved = move(Encoding(ids=torch.ones(2)), torch.device("meta"))
    assert type(moved) is Encoding
    assert moved["ids"].device.type == "meta"


def test_a_loader_of_another_batch_size_is_refused() -> None:
    model = net()
    with pytest.raises(ValueError, match="found batches of 4, the plan has batch_size=8"):
        module_of(export().text)["train"](model, loader(4), make_optimizer(model), compute_loss)


def test_the_loop_of_a_plan_of_several_ranks_needs_as_many() -> None:
    model, text = net(), export({RANKS: "2"}, layout="replicated").text
    with pytest.raises(ValueError, match="found 1 ranks, the plan is for 2"):
        module_of(text)["train"](model, loader(8), make_optimizer(model), compute_loss)
    with fake_ranks(2):
        module_of(text)["train"](model, loader(8), make_optimizer(model), compute_loss)
    assert "RANKS" not in export().text


def test_inference_predicts_without_touching_the_weights() -> None:
    text = export({"mode": "inference", "max_grad_norm": "1.0"}, precision="bf16", micro_batch_size=4).text
    assert "MAX_GRAD_NORM" not in text
    model = net()
    before = copy.deepcopy(model.state_dict())
    outputs = list(module_of(text)["predict"](model, loader(4), lambda model, batch: model(batch[0])))
    assert sum(map(len, outputs)) == 22
    assert outputs[0].dtype is torch.bfloat16
    assert not outputs[0].requires_grad
    assert not model.training
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_the_worker_processes_that_keep_up_are_named() -> None:
    found = answer(OWN.replace(micro_batch_size=16))
    trials = (LoadingTrial(workers=0, samples_per_s=1.0), LoadingTrial(workers=2, samples_per_s=9.0))
    loading = Loading(needed_per_s=8.0, trials=trials, workers=2, prefetch_factor=2, pin_memory=True)
    for changes, words in (
        ({}, ", num_workers=2, pin_memory=True, prefetch_factor=2, shuffle"),
        ({"kept": "so"}, ", shuffle"),
    ):
        proof = found.proof.model_copy(update={"loading": loading.model_copy(update=changes)})
        text = by_name("python").export(found.model_copy(update={"proof": proof})).text
        assert f"DataLoader(dataset, batch_size=MICRO_BATCH_SIZE{words}" in text


@pytest.mark.parametrize("count", [1, 5, 22, 90])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_of_similar_length_are_those_of_the_measured_loader(count: int, drop_last: bool) -> None:
    """The exported sampler draws the same numbers as the loader of `fit.prepare` with shuffle=True."""
    exported = export(length_grouping=True, micro_batch_size=4)
    assert exported.unmapped == ()
    lengths = [7 * at % 23 + 1 for at in range(count)]
    sampler = module_of(exported.text)["ByLength"](lengths, drop_last)
    measured = LengthBatches(RandomSampler(lengths), lengths.__getitem__, 4, drop_last)
    for _ in range(2):
        torch.manual_seed(3)
        batches = list(sampler)
        torch.manual_seed(3)
        assert batches == list(measured)
        assert len(batches) == len(sampler) == len(measured)


def test_a_loop_for_batches_of_similar_length_takes_no_others() -> None:
    text = export(length_grouping=True).text
    model, batches = net(), loader(8)
    with pytest.raises(ValueError, match="batch_sampler=ByLength"):
        module_of(text)["train"](model, batches, make_optimizer(model), compute_loss)
    module = module_of(text)
    grouped = DataLoader(batches.dataset, batch_sampler=module["ByLength"]([1] * 22))
    module["train"](model, grouped, make_optimizer(model), compute_loss)
    assert "ByLength" not in export(length_grouping=False).text


def test_values_without_words_are_unmapped() -> None:
    exported = export(precision="fp8", checkpointed_blocks="all", compile=True)
    assert exported.unmapped == ("precision", "checkpointed_blocks", "compile")
    assert "#   precision=fp8\n" in exported.text
    module_of(exported.text)


def test_micro_batches_are_weighted_by_what_the_loss_is_a_mean_over() -> None:
    """D10: as `TrainStep` does; a micro batch in which nothing counts is left out."""
    images, targets = next(iter(loader(16)))
    targets[[0, 1, 2, 5, 8, 9, 10]] = -100
    data = TensorDataset(images, targets)
    settings = {"weighing": "batch[1] != -100"}
    module = module_of(export(settings, micro_batch_size=2, accumulation_steps=8).text)
    exported = nn.Sequential(nn.Flatten(), nn.Linear(40, 3))
    expected = copy.deepcopy(exported)
    sgd = partial(torch.optim.SGD, lr=0.1)
    module["train"](exported, DataLoader(data, batch_size=2), sgd(exported.parameters()), compute_loss)
    optimizer = sgd(expected.parameters())
    compute_loss(expected, (images, targets)).backward()  # type: ignore[no-untyped-call]  # torch has no types here
    optimizer.step()
    assert torch.allclose(exported.get_parameter("1.weight"), expected.get_parameter("1.weight"), rtol=1e-4, atol=1e-6)


def total_loss(model: nn.Module, batch: Any) -> torch.Tensor:
    return F.cross_entropy(model(batch[0]), batch[1], reduction="sum")


def test_micro_batches_of_a_sum_are_added_up() -> None:
    batch = next(iter(loader(16)))
    text = export({"weighing": "1"}, micro_batch_size=2, accumulation_steps=8).text
    assert "returns the sum of the losses of the samples" in text
    exported = nn.Sequential(nn.Flatten(), nn.Linear(40, 3))
    expected = copy.deepcopy(exported)
    sgd, batches = partial(torch.optim.SGD, lr=0.01), DataLoader(TensorDataset(*batch), batch_size=2)
    module_of(text)["train"](exported, batches, sgd(exported.parameters()), total_loss)
    optimizer = sgd(expected.parameters())
    torch.autograd.backward(total_loss(expected, batch))
    optimizer.step()
    assert torch.allclose(exported.get_parameter("1.weight"), expected.get_parameter("1.weight"), rtol=1e-4, atol=1e-6)


def test_weights_below_one_are_not_cut_off() -> None:
    module = module_of(export({"weighing": "batch[1]"}, micro_batch_size=2, accumulation_steps=8).text)
    assert module["size"]((torch.ones(2), torch.tensor([0.25, 0.5]))) == 0.75


class Attributes(dict[str, Any]):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.__dict__ = self


def test_a_dict_with_attributes_of_its_own_is_moved_as_what_it_is() -> None:
    batch: Any = Attributes(x=torch.ones(2), y=torch.zeros(2))
    module = module_of(export(micro_batch_size=2, accumulation_steps=2).text)
    moved: Any = module["to_device"](batch, torch.device("meta"))
    assert type(moved) is type(batch)
    assert moved.x.is_meta
    assert moved["y"].is_meta
    assert not batch.x.is_meta


def test_a_step_in_which_nothing_counts_updates_nothing() -> None:
    """With a scaler it ended in an assertion of torch's."""
    exported = export({"weighing": "batch[1]"}, micro_batch_size=2, accumulation_steps=2)
    model = nn.Linear(2, 1)
    before = model.weight.detach().clone()
    loader = [(torch.ones(2, 2), torch.zeros(2))] * 4
    compute = lambda model, batch: (model(batch[0]).squeeze(1) * batch[1]).sum()  # noqa: E731
    module_of(exported.text)["train"](model, loader, torch.optim.SGD(model.parameters(), lr=1.0), compute)
    assert torch.equal(model.weight, before)


def test_a_weighing_of_a_plan_file_is_never_written_as_code_unread() -> None:
    with pytest.raises(PlanFileError, match="expected the entries of a batch"):
        export({"weighing": "__import__('os').system('true')"}, micro_batch_size=2, accumulation_steps=8)
