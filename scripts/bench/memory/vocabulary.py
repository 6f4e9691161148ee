"""What the chunked loss brings to a language model with a vocabulary of 50,000: micro batch, gradients, measured peak.

The model is that of `examples/gpt.py`, with the sizes of GPT-2 small: 12 layers of width 768, texts of 512 tokens.
Estimated for a CUDA device like an A100 with 24 GiB: the largest micro batch of the baseline, and with the chunked loss
alone. Required: at least 1.5 times as large.

A small model of the same kind runs on the CPU. Required: loss and gradients of both within rounding (relative L2 of at
most 1e-5), and a measured peak that is lower by at least one tensor of logits.
"""

from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch.utils.data import DataLoader

import autofit
from autofit import devices
from autofit.core.briefing import Options
from autofit.core.plan import KnobValue, Plan
from autofit.core.trial import Purpose
from autofit.core.units import format_bytes
from autofit.prepare import prepare
from autofit.probing.local_bench import LocalBench
from autofit.strategies import members
from autofit.workloads.loss import resolve_loss
from autofit.workloads.step import Draft, StepBatch
from scripts.bench import report
from scripts.bench.gain import load

VOCABULARY, BUDGET = 50_000, "24GiB"
LARGE = {"width": 768, "depth": 12, "heads": 12}
SMALL = {"width": 32, "depth": 2, "heads": 2}
SMALL_TOKENS, SMALL_BATCH = 64, 8
REQUIRED_GROWTH, REQUIRED_DISTANCE = 1.5, 1e-5
KNOB, CHUNKED = "linear_cross_entropy", "chunked"


def make_workload(tokens: int = 512, texts: int = 64, **sizes: int) -> autofit.Workload:
    """Returns the model with a large vocabulary, and random texts of `tokens` tokens."""
    example = _example(tokens)
    torch.manual_seed(0)
    data: Any = list(torch.randint(0, VOCABULARY, (texts, tokens)))
    loader: DataLoader[Any] = DataLoader(data, batch_size=SMALL_BATCH, collate_fn=example.collate)
    optimizer = partial(torch.optim.AdamW, lr=1e-4)
    return autofit.Workload(example.GPT(**(sizes or LARGE)), loader, optimizer=optimizer)


def _example(tokens: int) -> ModuleType:
    example = load("gpt")
    vars(example).update(VOCABULARY=VOCABULARY, LONGEST=tokens)
    return example


def largest() -> dict[str, int]:
    """Returns the estimated largest micro batch of the ordinary and of the chunked loss."""
    target = "scripts.bench.memory.vocabulary:make_workload"
    estimation = autofit.estimate(target, memory_budget=BUDGET, strategies=["batching", KNOB])
    rows = {str(row.value): row.largest for row in estimation.rows if row.knob == KNOB}
    return {value: 0 if found is None else found.plan.micro_batch_size for value, found in rows.items()}


def distances() -> dict[str, float]:
    """Returns the relative distances of loss and gradients of the small model between the two losses."""
    workload = make_workload(SMALL_TOKENS, **SMALL)
    workload.model.eval()  # the dropout of two copies would differ
    batch = next(iter(workload.loader))
    rule = resolve_loss(workload.model, batch)
    found = []
    for value in ("default", CHUNKED):
        workload.model.zero_grad()
        draft = Draft(workload.model, rule, workload.make_optimizer(), torch.device("cpu"))
        with prepare(Plan(values={KNOB: value}), draft, members()) as step:
            loss = step.backward(StepBatch.alike([batch]))
        gradients = [p.grad.flatten().clone() for p in workload.model.parameters() if p.grad is not None]
        found.append((loss.double(), torch.cat(gradients).double()))
    (loss, gradient), (chunked_loss, chunked_gradient) = found
    return {
        "loss": float((chunked_loss - loss).abs() / loss.abs()),
        "gradient": float((chunked_gradient - gradient).norm() / gradient.norm()),
    }


def measured_peaks() -> dict[str, int]:
    """Returns the measured peaks of live tensors of the small model on the CPU, in bytes."""
    peaks = {}
    workload = make_workload(SMALL_TOKENS, **SMALL)
    with LocalBench(workload, devices.choose("cpu"), Options(memory_budget="4GiB", strategies=(KNOB,))) as bench:
        baseline = bench.briefing.space.baseline
        for value in ("default", CHUNKED):
            values: dict[str, KnobValue] = {**baseline.values, KNOB: value}
            measurement = bench.evaluate(Plan(values=values), Purpose.PROBE).measurement
            assert measurement is not None, "both plans of the small model run"
            peaks[value] = measurement.memory.judged_bytes
    return peaks


def main() -> None:
    given = report.parser(__doc__ or "").parse_args()
    sizes, distance, peaks = largest(), distances(), measured_peaks()
    growth = sizes[CHUNKED] / max(sizes["default"], 1)
    logits_bytes = SMALL_BATCH * (SMALL_TOKENS - 1) * VOCABULARY * 4
    saved_bytes = peaks["default"] - peaks[CHUNKED]
    passed = growth >= REQUIRED_GROWTH and max(distance.values()) <= REQUIRED_DISTANCE and saved_bytes >= logits_bytes
    summary = (
        f"vocabulary of {VOCABULARY:,}: largest micro batch {sizes['default']} -> {sizes[CHUNKED]} ({growth:.2f} "
        f"times, estimated, {BUDGET}); gradients differ by {distance['gradient']:.1e}; measured peak of a small model "
        f"{format_bytes(peaks['default'])} -> {format_bytes(peaks[CHUNKED])}: {'ok' if passed else 'MISSED'}"
    )
    figures = {"largest": sizes, "growth": growth, "distances": distance, "peaks_bytes": peaks}
    report.finish(summary, figures, given.json, passed, device="cpu")


if __name__ == "__main__":
    main()
