"""Rows D3 and D10 of the trials by users: chance and state in a step are no change, token means are weighted by tokens.

Real architectures at toy size, with random weights; each was refused before, or would be let through by a gate that
only looks away.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

import autofit
from autofit import devices
from autofit.core.briefing import Options
from autofit.core.plan import Plan
from autofit.fit import Fit
from autofit.gates.verdict import Checked
from autofit.probing.local_bench import LocalBench
from autofit.workloads.batch_algebra import split
from autofit.workloads.step import StepBatch
from autofit.workloads.workload import Workload

GLOBAL = 16
ALL_SIZES = (1, 2, 4, 8, 16)
SIZES = (5, 9, 14, 7, 12, 6, 16, 10)

Step = Callable[[nn.Module, Any], torch.Tensor]


def opened(model: nn.Module, loader: Any, *strategies: str, **more: Any) -> LocalBench:
    workload = Workload(model, loader, global_batch_size=GLOBAL, **more)
    return LocalBench(workload, devices.choose("cpu"), Options(strategies=strategies or ("batching",)))


def checked(bench: LocalBench, **values: Any) -> Checked:
    """Returns the check of a plan with smaller micro batches than the baseline's 8, and with other values."""
    with bench:
        assert bench.briefing.space.sizes == ALL_SIZES
        return bench.check(
            bench.briefing.space.baseline.replace(micro_batch_size=4, accumulation_steps=4, **values), {}
        )


# Row D3. Chance and state.


class UNet(nn.Module):
    """A small diffusion U-Net: one level down, one up, a skip connection, and the time step as an embedding."""

    def __init__(self, norm: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.time = nn.Embedding(1000, 16)
        self.inward = nn.Conv2d(1, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16) if norm else nn.GroupNorm(4, 16)
        self.down = nn.Conv2d(16, 16, 3, stride=2, padding=1)
        self.up = nn.ConvTranspose2d(16, 16, 2, stride=2)
        self.outward = nn.Conv2d(32, 1, 3, padding=1)

    def forward(self, x: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        first = F.silu(self.norm(self.inward(x)) + self.time(t)[:, :, None, None])
        output: torch.Tensor = self.outward(torch.cat([first, F.silu(self.up(F.silu(self.down(first))))], 1))
        return output


def denoise(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    steps = torch.randint(0, 1000, (len(batch),))
    noise, kept = torch.randn_like(batch), 1 - steps[:, None, None, None] / 1000
    return F.mse_loss(model(batch * kept.sqrt() + noise * (1 - kept).sqrt(), steps), noise)


def denoise_summed(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return denoise(model, batch) * len(batch)


def images(batch_size: int = 8) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    samples: Any = list(torch.randn(48, 1, 8, 8, generator=generator))
    return DataLoader(samples, batch_size=batch_size)


class Stochastic(nn.Module):
    """Residual blocks left out by a coin that `.item()` looks at, drop path by sample, and dropout by hand."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Linear(64, 32)
        self.blocks = nn.ModuleList(nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 32), nn.GELU()) for _ in range(4))
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x.flatten(1))
        for block in self.blocks:
            if torch.rand(()).item() < 0.3:
                continue
            path = x.new_empty((len(x), 1)).bernoulli_(0.8) / 0.8
            x = x + path * block(x)
        output: torch.Tensor = self.head(F.dropout(x, 0.2, training=True))
        return output


def classify(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(model(batch), batch.flatten(1).argmax(1) % 10)


class Distilled(nn.Module):
    """A student with a teacher that follows it and a centre, both changed in each step, as in DINO."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.student = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 16))
        self.teacher = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 16)).requires_grad_(
            False
        )
        self.register_buffer("centre", torch.ones(16))
        self.centre: torch.Tensor


def distil(model: Distilled, batch: torch.Tensor) -> torch.Tensor:
    wanted = model.teacher(batch)
    loss = -(F.softmax((wanted - model.centre) / 0.1, 1) * F.log_softmax(model.student(batch), 1)).sum(1).mean()
    with torch.no_grad():
        model.centre.lerp_(wanted.float().mean(0), 0.1)
        for slow, fast in zip(model.teacher.parameters(), model.student.parameters(), strict=True):
            slow.lerp_(fast, 0.1)
    return loss


@pytest.mark.parametrize(
    ("model", "step"),
    [(UNet, denoise), (Stochastic, classify), (Distilled, distil)],
    ids=["diffusion", "dropout by hand and stochastic depth", "moving teacher"],
)
def test_d3_chance_and_state_in_a_step_lock_neither_batch_nor_precision(model: type[nn.Module], step: Step) -> None:
    bench = opened(model(), images(), "batching", "precision", step_fn=step)
    found = checked(bench, precision="bf16")
    assert found.passed, found.reason
    assert found.verdicts.keys() == {"accumulation", "precision=bf16"}


def test_d3_state_that_a_step_changes_is_put_back_and_said() -> None:
    """The gradient is the same; that the teacher moves once per micro batch is for the user to judge."""
    model = Distilled()
    before = copy.deepcopy(model.state_dict())
    found = checked(opened(model, images(), step_fn=distil))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    (caveat,) = (caveat for caveat in found.caveats if "once for each micro batch" in caveat)
    assert "the step changes model." in caveat
    assert "change it after the optimizer's step instead" in caveat


class ActNorm(nn.Module):
    """Activation normalisation: its scale and shift are set by the first batch that it sees in training."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("ready", torch.tensor(False))
        self.ready: torch.Tensor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training and not self.ready:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
                self.scale.copy_(1 / (x.std(0, unbiased=False) + 1e-6))
                self.ready.fill_(True)
        return (x + self.shift) * self.scale


def flow(normalised: bool) -> nn.Module:
    torch.manual_seed(0)
    always = [nn.BatchNorm1d(8)] if normalised else []
    return nn.Sequential(nn.Linear(8, 8), ActNorm(8), *always, nn.Tanh(), nn.Linear(8, 2))


@pytest.mark.parametrize("normalised", [False, True])
def test_d3_what_the_first_batch_sets_is_no_chance_and_hides_no_change(normalised: bool) -> None:
    samples: Any = list(torch.randn(48, 8, generator=torch.Generator().manual_seed(0)))
    loader: DataLoader[Any] = DataLoader(samples, batch_size=8)
    found = checked(opened(flow(normalised), loader, step_fn=lambda model, x: model(x).square().mean()))
    caveats = " ".join(found.caveats)
    assert found.passed is not normalised
    assert not normalised or "changes the gradient" in found.reason
    assert "evaluation mode" not in caveats
    assert normalised or "the step changes model.1.scale" in caveats


class Quantised(nn.Module):
    """A codebook that is a moving average of what it was shown, and is used as it then is."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.inward, self.outward = nn.Linear(64, 8), nn.Linear(8, 64)
        self.register_buffer("codes", torch.randn(16, 8))
        self.codes: torch.Tensor

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        found = self.inward(x.flatten(1))
        nearest = torch.cdist(found, self.codes).argmin(1)
        if self.training:
            with torch.no_grad():
                for code in nearest.unique().tolist():  # type: ignore[no-untyped-call]  # torch has no types here
                    self.codes[code].lerp_(found[nearest == code].mean(0), 0.3)
        kept = self.codes[nearest]
        return self.outward(found + (kept - found).detach()), F.mse_loss(found, kept)


def quantise(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    output, distance = model(batch)
    loss: torch.Tensor = F.mse_loss(output, batch.flatten(1)) + distance
    return loss


def test_d3_state_that_a_micro_batch_changes_before_it_is_used_is_a_change_and_no_chance() -> None:
    reason = checked(opened(Quantised(), images(), step_fn=quantise)).reason
    assert "accumulation changes the gradient of this model" in reason
    assert "The step changes model.codes by itself, once for each micro batch" in reason


def contrast(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """InfoNCE between two noisy views."""
    views = [F.normalize(model(batch + 0.5 * torch.randn_like(batch)), dim=1) for _ in range(2)]
    return F.cross_entropy(views[0] @ views[1].T / 0.1, torch.arange(len(batch)))


def mixed_up(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Each sample is mixed with another of its batch: alone, it has none."""
    order = torch.randperm(len(batch))
    targets = batch.flatten(1).argmax(1) % 10
    output = model(0.6 * batch + 0.4 * batch[order])
    return 0.6 * F.cross_entropy(output, targets) + 0.4 * F.cross_entropy(output, targets[order])


def normalised() -> nn.Module:
    return UNet(norm=True)


@pytest.mark.parametrize(
    ("model", "step"),
    [(normalised, denoise), (Stochastic, contrast), (Stochastic, mixed_up)],
    ids=["batch norm", "contrastive", "mixup"],
)
def test_d3_a_change_of_the_objective_is_found_in_noise_too(model: Callable[[], nn.Module], step: Step) -> None:
    found = checked(opened(model(), images(), step_fn=step))
    assert [refusal.name for refusal in found.refused] == ["accumulation"]
    assert "accumulation changes the gradient of this model" in found.reason


def test_d3_a_sum_is_added_up_in_noise_too() -> None:
    found = checked(opened(UNet(), images(), step_fn=denoise_summed))
    assert found.verdicts["accumulation"].weighing == "1"
    (caveat,) = (caveat for caveat in found.caveats if "a sum over samples" in caveat)
    assert "micro batches are added up, and so are the 2 micro batches of the baseline" in caveat


def in_numpy(strength: float, summed: bool) -> Step:
    """Noise that torch knows nothing of, so that no two runs can share it."""
    source = np.random.default_rng(0)

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        noise = torch.from_numpy(source.standard_normal(batch.shape)).float()
        loss = classify(model, batch + strength * noise)
        return loss * len(batch) if summed else loss

    return step


def holding(kind: str) -> Step:
    """A step function that holds a moving teacher: in its closure, as the object that it is a method of, or its own."""
    teacher = copy.deepcopy(Distilled().teacher)
    for parameter in teacher.parameters():
        torch.nn.init.normal_(parameter, std=0.3, generator=torch.Generator().manual_seed(1))

    class Trainer:
        def __init__(self) -> None:
            self.teacher, self.steps = teacher, 0

        def step(self, model: Any, batch: torch.Tensor) -> torch.Tensor:
            self.steps += 1
            loss = F.mse_loss(model.student(batch), self.teacher(batch))
            with torch.no_grad():
                for slow, fast in zip(self.teacher.parameters(), model.student.parameters(), strict=True):
                    slow.lerp_(fast, 0.1)
            return loss

    trainer = Trainer()

    def step(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        return trainer.step(model, batch)

    return trainer.step if kind == "method" else step


@pytest.mark.parametrize("kind", ["method", "closure"])
def test_d3_a_teacher_that_the_step_function_holds_locks_nothing(kind: str) -> None:
    bench = opened(Distilled(), images(), "batching", "precision", step_fn=holding(kind))
    found = checked(bench, precision="bf16")
    assert found.passed, found.reason
    assert any("the step changes step_fn" in caveat for caveat in found.caveats)


@pytest.mark.parametrize("summed", [False, True], ids=["mean", "sum"])
def test_d3_where_numbers_cannot_be_shared_means_of_many_draws_are_compared(summed: bool) -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    found = checked(opened(model, images(), step_fn=in_numpy(0.1, summed)))
    assert found.passed is not summed
    assert "draws of the step's own random numbers" in found.verdicts["accumulation"].reason


def test_d3_it_is_said_where_what_a_model_does_in_training_alone_was_not_compared() -> None:
    class Mixed(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.flatten(1)
            return super().forward(0.7 * x + 0.3 * x[torch.randperm(len(x))] if self.training else x)

    found = checked(opened(Mixed(64, 10), images(), step_fn=classify))
    assert found.passed
    assert any("behaviour that is specific to training was not compared" in said for said in found.caveats)


# Row D10. Token means.


def tokens(size: int, seed: int) -> torch.Tensor:
    return torch.randint(3, 64, (size,), generator=torch.Generator().manual_seed(seed))


def rows() -> list[torch.Tensor]:
    return [tokens(SIZES[at % len(SIZES)], at) for at in range(48)]


def padded(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    ids = nn.utils.rnn.pad_sequence(samples, batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids.masked_fill(ids == 0, -100)}


def masked(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """A masked language model: one token in six is to be guessed, at fixed places; some samples have few."""
    batch = padded(samples)
    guessed = (batch["input_ids"] % 6 == 0) & (batch["attention_mask"] == 1)
    return {**batch, "labels": batch["input_ids"].masked_fill(~guessed, -100)}


def spoken(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    features = torch.stack([torch.randn(8, 40, generator=torch.Generator().manual_seed(len(row))) for row in samples])
    return {"input_features": features, "labels": padded(samples)["labels"]}


def series(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    values = nn.utils.rnn.pad_sequence([row / 64 for row in samples], batch_first=True)
    return {"values": values, "observed": values > 0}


def forecast_error(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    error = (model(batch["values"][..., None])[..., 0] - batch["values"]).square()
    loss: torch.Tensor = (error * batch["observed"]).sum() / batch["observed"].sum()
    return loss


def llama() -> tuple[nn.Module, Any, dict[str, Any]]:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = transformers.LlamaConfig(vocab_size=64, num_key_value_heads=1, **sizes)
    return transformers.LlamaForCausalLM(config), padded, {}


def bert() -> tuple[nn.Module, Any, dict[str, Any]]:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    return transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=64, **sizes)), masked, {}


def whisper() -> tuple[nn.Module, Any, dict[str, Any]]:
    transformers = pytest.importorskip("transformers")
    config = transformers.WhisperConfig(
        **{"vocab_size": 64, "d_model": 16, "num_mel_bins": 8, "max_source_positions": 20, "max_target_positions": 32},
        **{f"{side}_{name}": value for side in ("encoder", "decoder") for name, value in
           {"layers": 1, "attention_heads": 2, "ffn_dim": 32}.items()},
        **{"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1},
    )  # fmt: skip
    return transformers.WhisperForConditionalGeneration(config), spoken, {}


def masked_series() -> tuple[nn.Module, Any, dict[str, Any]]:
    return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)), series, {"step_fn": forecast_error}


def segmentation() -> tuple[nn.Module, Any, dict[str, Any]]:
    """Pixels of class 255 do not count; how many there are differs by image."""

    def collate(samples: list[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
        inputs = torch.stack([F.pad(row / 64, (0, 16 - len(row))) for row in samples])
        wanted = torch.stack([F.pad(row % 3, (0, 16 - len(row)), value=255) for row in samples])
        return inputs.view(-1, 1, 4, 4), wanted.view(-1, 4, 4)

    return nn.Conv2d(1, 3, 3, padding=1), collate, {"loss_fn": nn.CrossEntropyLoss(ignore_index=255)}


def tagging() -> tuple[nn.Module, Any, dict[str, Any]]:
    """An inferred cross-entropy over padded labels."""

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.head = nn.Embedding(64, 8), nn.Linear(8, 64)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            output: torch.Tensor = self.head(self.embed(ids)).transpose(1, 2)
            return output

    return Tagger(), lambda samples: tuple(padded(samples)[key] for key in ("input_ids", "labels")), {}


CASES = {
    llama: "batch['labels'][..., 1:] != -100",
    bert: "batch['labels'] != -100",
    whisper: "batch['labels'] != -100",
    masked_series: "batch['observed'] != 0",
    segmentation: "batch[1] != 255",
    tagging: "batch[1] != -100",
}


@pytest.mark.parametrize(("make", "weighing"), CASES.items(), ids=[make.__name__ for make in CASES])
def test_d10_token_means_are_weighted_by_what_they_are_a_mean_over(make: Callable[[], Any], weighing: str) -> None:
    torch.manual_seed(0)
    model, collate, more = make()
    loader: DataLoader[Any] = DataLoader(rows(), batch_size=8, collate_fn=collate)  # type: ignore[arg-type]  # a list is a data set
    found = checked(opened(model, loader, **more))
    assert found.passed, found.reason
    assert found.verdicts["accumulation"].weighing == weighing
    (caveat,) = (caveat for caveat in found.caveats if "is a mean over" in caveat)
    assert weighing in caveat


@pytest.mark.slow
def test_d10_the_step_that_a_user_trains_with_is_that_of_the_whole_batch() -> None:
    """Promise 3, through `tune`, a saved plan and `prepare`."""
    torch.manual_seed(0)
    model, collate, _ = llama()
    loader: DataLoader[Any] = DataLoader(rows(), batch_size=8, collate_fn=collate)  # type: ignore[arg-type]  # a list is a data set
    fit = autofit.tune(
        model, loader, global_batch_size=GLOBAL, strategies=["batching"], study=":memory:", progress=False
    )
    answer = fit.answer.model_copy(update={"plan": Plan(values={"micro_batch_size": 4, "accumulation_steps": 4})})
    batch = padded(rows()[:GLOBAL])
    with Fit(answer).prepare(model.eval(), loader) as step:
        step.backward(StepBatch((batch,), (1.0,)))
        whole = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        model.zero_grad()
        step.backward(StepBatch.of(split(batch, [4] * 4)))
        parts = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert float((parts - whole).norm() / whole.norm()) < 1e-5
