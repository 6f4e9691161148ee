"""User trials D2, D7 and D11: batches whose shapes do not tell what a sample is, and loaders that group by length."""

from collections.abc import Callable, Iterable, Iterator
from statistics import fmean
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, SequentialSampler, default_collate

import autofit
from autofit import devices
from autofit.core.account import Account
from autofit.core.briefing import Options
from autofit.core.plan import Plan
from autofit.core.trial import Purpose
from autofit.estimators.traced import Traced
from autofit.fit import Fit
from autofit.identity import model_signature
from autofit.probing.local_bench import LocalBench
from autofit.workloads.batch_algebra import batch_size
from autofit.workloads.counted_batches import Counted
from autofit.workloads.sources import source_of
from autofit.workloads.step import StepBatch, StepLoader
from autofit.workloads.workload import Workload
from tests.test_planfile import RECORD
from tests.workloads.loaders import pad
from tests.workloads.ragged import CASES, Buckets, Case, MadeBuckets, Sentences, Streamed, text_lengths

MICRO, STEPS = 4, 4
CPU: Any = type(devices.choose("cpu"))


def fit_for(model: nn.Module, micro: int = MICRO, steps: int = STEPS) -> Fit:
    """Returns a fit for `model` with a plan of so many micro batches."""
    name = devices.choose("cpu").name()
    environment = RECORD.environment.model_copy(
        update={"workload": f"{model_signature(model)}-any", "device_name": name}
    )
    plan = Plan(values={"micro_batch_size": micro, "accumulation_steps": steps})
    return Fit(RECORD.model_copy(update={"plan": plan, "environment": environment}))


def gradient(model: nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def loaders(case: Case) -> dict[str, DataLoader[Any]]:
    """The ways in which a DataLoader can be told its batches; 58 samples, so that the last ones are short."""
    data, collate = case.data(), case.collate
    kept = torch.utils.data.Subset(data, range(58))
    return {
        "batch_size": DataLoader(kept, batch_size=8, collate_fn=collate, shuffle=True),
        "own_size": DataLoader(kept, batch_size=MICRO, collate_fn=collate),
        "batch_sampler": DataLoader(
            kept, collate_fn=collate, batch_sampler=BatchSampler(RandomSampler(kept), 8, drop_last=False)
        ),
        "own_batch_sampler": DataLoader(kept, collate_fn=collate, batch_sampler=Buckets([9] * 58, 8)),
        "stream": DataLoader(Streamed(kept), batch_size=8, collate_fn=collate),
        "workers": DataLoader(kept, batch_size=8, collate_fn=collate, num_workers=1),
    }


@pytest.mark.parametrize("way", ["batch_size", "own_size", "batch_sampler", "own_batch_sampler", "stream", "workers"])
@pytest.mark.parametrize("name", CASES)
def test_d2_an_accumulated_step_has_the_gradient_of_its_whole_batch(name: str, way: str) -> None:
    case, drawn = CASES[name], list[Any]()
    model, twin = case.fresh(), case.fresh()

    def noting(samples: list[Any]) -> Any:
        drawn.extend(samples)
        return case.collate(samples)

    loader = loaders(case)[way]
    if way != "workers":
        loader.collate_fn = noting
    step = fit_for(model).prepare(model, loader, torch.optim.AdamW(model.parameters()), step_fn=case.loss)
    drawn.clear()
    sizes = []
    for at, batch in enumerate(step.loader):
        step.backward(batch)
        found = gradient(model)
        model.zero_grad()
        if way == "workers":  # the samples were drawn elsewhere, in their order
            drawn = [loader.dataset[key] for key in range(16 * at, min(16 * at + 16, 58))]
        case.loss(twin, case.collate(drawn)).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        whole = gradient(twin)
        twin.zero_grad()
        assert (found - whole).norm() / whole.norm() < 1e-6
        sizes.append([round(weight * len(drawn)) for weight in batch.weights])
        drawn.clear()
    assert sorted(size for step in sizes for size in step) == [2] + 14 * [4]
    assert [len(step) for step in sizes] == [4, 4, 4, 3]


def test_d2_weights_by_rows_would_be_wrong_for_graphs() -> None:
    case = CASES["graphs"]
    model, twin = case.fresh(), case.fresh()
    parts = list(case.loader(MICRO))[:STEPS]
    step = StepBatch.of([Counted(part, batch_size(part)) for part in parts])
    for part, weight in zip(step.parts, step.weights, strict=True):
        (case.loss(model, part) * weight).backward()  # type: ignore[no-untyped-call]  # torch has no types here
    case.loss(twin, next(iter(case.loader(MICRO * STEPS)))).backward()  # type: ignore[no-untyped-call]  # torch has no types here
    assert (gradient(model) - gradient(twin)).norm() / gradient(twin).norm() > 0.01


def test_d2_samples_that_cannot_be_counted_weigh_the_same_and_that_is_said() -> None:
    case = CASES["graphs"]
    ready = list(case.loader(MICRO))
    source = source_of(ready)
    assert not source.resizable
    (note,) = source.notes
    assert note.endswith("in an accumulated step all micro batches have the same weight")
    first = next(iter(StepLoader(source.rebuild(source.user_batch_size, counted=True), STEPS)))
    assert first.weights == [0.25] * 4
    assert first.parts == ready[:4]


class OwnWay(DataLoader[Any]):
    """A loader that does more than a DataLoader does."""

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]  # a generator, which is what it does more
        yield from super().__iter__()


def test_d2_a_loader_of_the_users_own_class_weighs_alike_what_shapes_do_not_tell() -> None:
    case = CASES["graphs"]
    loader = OwnWay(case.data(), batch_size=4, collate_fn=case.collate)
    grouped = StepLoader(source_of(loader).rebuild(4, counted=True), 2)
    assert [step.weights for step in grouped] == [[0.5, 0.5]] * 8
    assert len(grouped) == 8


def workload_of(case: Case, **changes: Any) -> Workload:
    return Workload(case.fresh(), case.loader(), step_fn=case.loss, optimizer=torch.optim.AdamW, **changes)


PLENTY = Options(memory_budget="1GiB", strategies=("batching", "precision"))


@pytest.mark.parametrize("name", CASES)
def test_d7_batches_collated_anew_have_accumulation_and_pass_the_gates(name: str) -> None:
    with LocalBench(workload_of(CASES[name], global_batch_size=32), CPU(), PLENTY) as bench:
        assert bench.briefing.space.sizes == (1, 2, 4, 8, 16, 32)
        assert not [refusal for refusal in bench.briefing.space.refused if "could not be checked" in refusal.reason]
        assert "accumulation" not in {refusal.name for refusal in bench.briefing.space.refused}


@pytest.mark.parametrize("name", CASES)
def test_d7_ragged_batches_are_estimated_at_any_size(name: str) -> None:
    sizes = (2, 8, 16, 40)
    with LocalBench(workload_of(CASES[name]), CPU(), PLENTY) as bench:
        plans = [Plan(values={"micro_batch_size": size, "accumulation_steps": 1}) for size in sizes]
        estimator = Traced(bench.trace, Account(allocator="host"), 2**30)
        estimator.refine(plans[1], plans)
        assert estimator.refused == ""
        for plan in plans:
            estimator.refine(plan)  # as before it runs
            estimate, outcome = estimator.estimate(plan), bench.evaluate(plan, Purpose.PROBE)
            assert estimate is not None
            assert outcome.measurement is not None
            assert estimate.value_bytes == pytest.approx(outcome.measurement.memory.judged_bytes, rel=0.05)


LENGTHS = text_lengths(2000)


def texts(batch_sampler: Any) -> DataLoader[Any]:
    return DataLoader(Sentences(LENGTHS), batch_sampler=batch_sampler, collate_fn=pad)


def padding(batches: Iterable[Any], size: int) -> float:
    """Returns the share of padding in the batches of one size."""
    masks = [batch["attention_mask"] for batch in batches if len(batch["attention_mask"]) == size]
    tokens = sum(int(mask.sum()) for mask in masks)
    return 1 - tokens / sum(int(mask.numel()) for mask in masks)


SAMPLERS: dict[str, Callable[[], Any]] = {
    "attribute": lambda: Buckets(LENGTHS, 8),
    "constructor": lambda: MadeBuckets(LENGTHS, 8),
    "neither": lambda: list(Buckets(LENGTHS, 8)),
}


@pytest.mark.parametrize("kind", SAMPLERS)
def test_d11_what_is_measured_has_the_padding_of_the_rebuilt_loader(kind: str) -> None:
    source = source_of(texts(SAMPLERS[kind]()))
    assert padding(source_of(DataLoader(Sentences(LENGTHS), 8, True, collate_fn=pad)).typical(8, 4), 8) > 0.35
    for size in (4, 8, 16, 32):
        trained, measured = padding(source.rebuild(size), size), padding(source.typical(size, 4), size)
        assert measured == pytest.approx(trained, abs=0.02)
        if kind != "neither":
            assert trained < 0.12


@pytest.mark.parametrize("kind", SAMPLERS)
def test_d11_useful_tokens_per_sample_are_those_of_the_data(kind: str) -> None:
    source = source_of(texts(SAMPLERS[kind]()))
    for size in (4, 8, 16, 32):
        tokens = fmean(source.tokens(batch) or 0 for batch in source.typical(size, 4)) / size
        assert tokens == pytest.approx(fmean(LENGTHS), rel=0.03)


def test_d11_a_sampler_that_was_rebuilt_follows_the_epoch_of_the_users_own() -> None:
    samplers: list[Any] = [Buckets(LENGTHS, 8), Moving()]
    for sampler in samplers:
        again: Any = source_of(texts(sampler)).rebuild(16)
        first = [batch["input_ids"][0, 0].item() for batch in again]
        if isinstance(sampler, Moving):
            assert sampler.epoch == 1  # as a pass over it leaves it
        else:
            assert first == [batch["input_ids"][0, 0].item() for batch in again]
            sampler.set_epoch(1)
        assert first != [batch["input_ids"][0, 0].item() for batch in again]


class Moving(Buckets):
    """Counts its epochs itself."""

    def __init__(self) -> None:
        super().__init__(LENGTHS, 8)

    def __iter__(self) -> Iterator[list[int]]:
        batches = self._batches()
        self.epoch += 1
        return iter(batches)


def test_d11_a_sampler_whose_order_groups_is_measured_in_its_order() -> None:
    data = Sentences(sorted(LENGTHS))
    source = source_of(DataLoader(data, batch_size=8, sampler=SequentialSampler(data), collate_fn=pad))
    for size in (8, 16):
        assert padding(source.typical(size, 4), size) == pytest.approx(padding(source.rebuild(size), size), abs=0.01)


def test_d11_looking_at_a_sampler_leaves_it_and_the_random_numbers_as_they_were() -> None:
    class Shuffling(Buckets):
        def __iter__(self) -> Iterator[list[int]]:
            batches = self._batches()
            return iter([batches[at] for at in torch.randperm(len(batches))])

    sampler, state = Shuffling(LENGTHS, 8), torch.random.get_rng_state()
    source = source_of(texts(sampler))
    first = [batch["label"].tolist() for batch in source.typical(16, 4)]
    source.rebuild(16)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert sampler.batch_size == 8
    torch.manual_seed(1234)
    again = source_of(texts(Shuffling(LENGTHS, 8)))
    assert [batch["label"].tolist() for batch in again.typical(16, 4)] == first


def test_what_is_said_of_a_sampler_that_cannot_be_resized() -> None:
    notes = " ".join(source_of(texts(SAMPLERS["neither"]())).notes)
    assert (
        "are measured as the baseline, and a step with a smaller batch has fewer samples than the plan states" in notes
    )
    assert "join or cut its batches in order, and are measured with the padding that results" in notes
    assert "join or cut" not in " ".join(source_of(texts(SAMPLERS["attribute"]())).notes)


@pytest.mark.parametrize(("total", "said"), [(15, "5 micro batches of 3"), (3, "1 micro batch of 3"), (16, "")])
def test_small_c_a_setting_that_is_not_the_loaders_is_said(total: int, said: str) -> None:
    case = CASES["dlrm"]
    workload = Workload(case.fresh(), case.loader(4), step_fn=case.loss, global_batch_size=total)
    with LocalBench(workload, CPU(), PLENTY) as bench:
        found = [caveat for caveat in bench.briefing.caveats if "the loader's batch of 4" in caveat]
    assert len(found) == bool(said)
    assert said in "".join(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["graphs", "detection"])
def test_d7_tune_finds_a_plan_and_trains_with_its_weights(name: str) -> None:
    case = CASES[name]
    model, loader = case.fresh(), case.loader()
    fit = autofit.tune(
        model,
        loader,
        step_fn=case.loss,
        optimizer=torch.optim.AdamW,
        global_batch_size=32,
        memory_budget="256MiB",
        strategies=("batching",),
        time_budget=15,
        device="cpu",
        study=":memory:",
        progress=False,
    )
    assert fit.plan.global_batch_size == 32
    assert not any("cannot be traced" in caveat or "not estimated" in caveat for caveat in fit.caveats)
    step = fit.prepare(model, loader, torch.optim.AdamW(model.parameters()), step_fn=case.loss)
    losses = [float(step(batch)) for batch in step.loader]
    assert len(losses) == 2


class Unreadable(Dataset[Any]):
    """Files of which some cannot be read."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, at: int) -> Any:
        return None if at in (10, 20, 30, 40) else (torch.full((3,), float(at)), torch.tensor([1.0]))


def of_readable(samples: list[Any]) -> Any:
    return default_collate([sample for sample in samples if sample is not None])


class Columns(Dataset[Any]):
    """Rows that come as columns at once."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, at: int) -> Any:
        return {"x": torch.full((3,), float(at)), "y": torch.tensor([1.0])}

    def __getitems__(self, rows: list[int]) -> Any:
        return {"x": torch.tensor(rows).float().unsqueeze(1).expand(-1, 3).clone(), "y": torch.ones(len(rows), 1)}


def inputs_and_targets(found: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return found["x"], found["y"]


@pytest.mark.parametrize(
    "loader",
    [
        lambda: DataLoader(Unreadable(), batch_size=8, collate_fn=of_readable),
        lambda: DataLoader(Columns(), batch_size=8, collate_fn=inputs_and_targets),
        lambda: [(torch.randn(1, 3 + at, 3).mean(1), torch.ones(1, 1)) for at in range(9)],
    ],
    ids=["unreadable files", "columns", "ready batches of one"],
)
def test_loaders_that_train_are_looked_at_without_an_error(loader: Callable[[], Any]) -> None:
    workload = Workload(nn.Linear(3, 1), loader(), loss_fn=F.mse_loss)
    with LocalBench(workload, devices.choose("cpu"), Options(memory_budget="1GiB", strategies=("batching",))) as bench:
        assert bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE).measured


def test_ready_batches_of_one_sample_of_many_lengths_can_be_opened() -> None:
    ready = [(torch.randn(1, 3 + at, 3), torch.ones(1, 3 + at, 1)) for at in range(9)]
    source = source_of(ready)
    assert (source.max_size, source.small_size) == (1, 1)
    workload = Workload(nn.Linear(3, 1), ready, loss_fn=F.mse_loss)
    with LocalBench(workload, devices.choose("cpu"), Options(memory_budget="1GiB", strategies=("batching",))) as bench:
        assert bench.briefing.space.sizes == (1,)


class Graph(nn.Module):
    """A graph convolution over all nodes at once; the graph is sparse, and in the batch or a buffer."""

    def __init__(self, held: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inward, self.outward = nn.Linear(8, 16), nn.Linear(16, 3)
        self.register_buffer("edges", edges() if held else None)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        edges = batch["edges"] if self.edges is None else self.edges
        hidden = torch.relu(torch.sparse.mm(edges, self.inward(batch["x"])))
        return F.cross_entropy(torch.sparse.mm(edges, self.outward(hidden)), batch["y"])


def edges(layout: str = "coo") -> torch.Tensor:
    places = torch.randint(50, (2, 200), generator=torch.Generator().manual_seed(0))
    found = torch.sparse_coo_tensor(places, torch.ones(200), (50, 50)).coalesce()
    return found if layout == "coo" else found.to_sparse_csr()


@pytest.mark.parametrize(("held", "layout"), [(False, "coo"), (False, "csr"), (True, "coo")])
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.filterwarnings("ignore:Sparse invariant checks")
def test_a_graph_whose_edges_are_a_sparse_tensor_is_tuned(held: bool, layout: str) -> None:
    batch = {"x": torch.randn(50, 8), "y": torch.randint(3, (50,))} | ({} if held else {"edges": edges(layout)})
    fit = autofit.tune(
        Graph(held), [batch], step_fn=lambda model, batch: model(batch), strategies=["optimizer_implementation"],
        study=":memory:", progress=False,
    )  # fmt: skip
    assert fit.plan.micro_batch_size == 50
    assert any("stays 50: the batches hold tensors without one row" in note for note in fit.caveats) == (not held)
