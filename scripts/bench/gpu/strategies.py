"""Runs every value of every knob once: the user's plan with one change, and a few changes that belong together.

Each plan is probed and compared with its trace, and then trains a few steps from the same weights on the same batches.
Required: every plan runs, unless compiling it takes longer than its share of the stage's time; a strategy that is exact
or rounds in float32 gives the losses of the user's plan; and every plan's losses stay near them.
"""

import argparse
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader

import autofit
from autofit import devices, estimators
from autofit.core.account import Account
from autofit.core.briefing import Options
from autofit.core.budget import Clock
from autofit.core.errors import AutofitError, Untraceable
from autofit.core.measurement import Measurement
from autofit.core.outcome import COMPILING, Status
from autofit.core.plan import KnobValue, Plan
from autofit.core.space import SearchSpace, SpaceFacts
from autofit.core.trial import Purpose
from autofit.core.units import format_bytes
from autofit.devices.base import Device
from autofit.prepare import prepare
from autofit.probing.local_bench import LocalBench
from autofit.probing.opening import place
from autofit.probing.watchdog import Watchdog
from autofit.strategies import members
from autofit.strategies.compilation import LEAST_WARM_UP_S
from autofit.workloads.first_loss import loss_of
from autofit.workloads.sources import source_of
from autofit.workloads.step import Draft, StepBatch
from autofit.workloads.tree import map_tensors
from scripts.bench.gpu import models, stage
from scripts.bench.gpu.architectures import language_loss, texts

TOGETHER: tuple[dict[str, KnobValue], ...] = (
    {"precision": "bf16", "activation_offload": True},
    {"precision": "bf16", "compile": "default"},
    {"precision": "bf16", "compile": "reduce-overhead"},
)
"""Changes that belong together. Those that the search space does not have are left out."""
STEPS = 4
SAME, NEAR = 1e-3, 0.05
"""Largest relative difference of a loss: of plans whose arithmetic is that of the user's plan up to the rounding of
float32, and of all others."""
CHANGED = ("precision", "length_grouping")
"""Knobs whose values compute something else, or in fewer bits."""


def language(scale: str = "full") -> autofit.Workload:
    """GPT-2 of four layers without dropout, 16 texts of 512 tokens in an optimizer step."""
    full = scale == "full"
    model, (length, vocabulary) = _gpt2(full), _TEXTS[full]
    loader = DataLoader(texts(length, vocabulary), batch_size=16 if full else 2, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return autofit.Workload(
        model, loader, step_fn=language_loss, optimizer=optimizer, global_batch_size=16 if full else 4
    )


def varied(scale: str = "full") -> autofit.Workload:
    """The same model, 16 texts of very different lengths in an optimizer step."""
    full = scale == "full"
    model, (length, vocabulary) = _gpt2(full), _TEXTS[full]
    generator = torch.Generator().manual_seed(0)
    shares = torch.empty(1024).log_normal_(-1.4, 0.8, generator=generator)
    lengths = (shares * length).long().clamp(length // 8, length).tolist()
    samples: Any = [torch.randint(1, vocabulary, (count,), generator=generator) for count in lengths]
    loader = DataLoader(samples, batch_size=16 if full else 8, shuffle=True, collate_fn=_padded)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return autofit.Workload(model, loader, optimizer=optimizer, global_batch_size=16 if full else 8)


_TEXTS = {True: (512, 50257), False: (16, 1031)}
"""Longest text and number of words, by whether the workload has its full size."""


def _gpt2(full: bool) -> nn.Module:
    (length, vocabulary), width = _TEXTS[full], 768 if full else 32
    sizes = {"n_embd": width, "n_layer": 4, "n_head": width // 16 // (4 if full else 1), "n_positions": length}
    dropouts = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    torch.manual_seed(0)
    found: nn.Module = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=vocabulary, use_cache=False, bos_token_id=0, eos_token_id=0, **sizes, **dropouts
        )
    )
    return found


def _padded(samples: list[Tensor]) -> dict[str, Tensor]:
    ids = pad_sequence(samples, batch_first=True)  # id 0 is padding
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": ids.masked_fill(ids == 0, -100)}


def images(scale: str = "full") -> autofit.Workload:
    """The residual network of the other stages."""
    return models.convnet(scale)


WORKLOADS: dict[str, Callable[[str], autofit.Workload]] = {"language": language, "texts": varied, "images": images}


def changes(space: SpaceFacts) -> list[Plan]:
    """Returns the baseline, each single change of it, and the changes that belong together.

    Changes that the space does not allow are left out. What takes longest to compile comes last, so that a stage that
    is cut off has run as many plans as it could.
    """
    searched, knobs = SearchSpace(space), space.knobs
    single = [
        {knob.name: value}
        for knob in knobs
        for value in knob.values
        if knob.name in space.baseline.values or value != knob.default
    ]
    offered = {knob.name: knob.values for knob in knobs}
    together = [each for each in TOGETHER if all(value in offered.get(name, ()) for name, value in each.items())]
    plans = dict.fromkeys(space.baseline.replace(**each) for each in ({}, *single, *together))
    allowed = [plan for plan in plans if searched.conflict(plan) is None]
    return sorted(allowed, key=lambda plan: LEAST_WARM_UP_S[str(plan.values.get("compile", "off"))])


def train(make: Callable[[str], autofit.Workload], scale: str, plan: Plan, device: Device) -> list[float]:
    """Returns the losses of a few steps of `plan` from the workload's first weights.

    The micro batches are the same for all plans: they are not those that the plan would take from the loader.
    """
    workload = make(scale)
    place(workload, device, may_move=True)
    source = source_of(workload.loader)
    draft = Draft.of(workload, loss_of(workload, source, device.torch_device), device.torch_device)
    parts = source.typical(plan.micro_batch_size, plan.accumulation_steps)
    batch = StepBatch.of([map_tensors(part, lambda t: t.to(device.torch_device)) for part in parts])
    torch.manual_seed(0)
    losses = []
    with prepare(plan, draft, members()) as step:
        for _ in range(STEPS):
            loss = step(batch)
            losses.append(float(loss))
    return losses


def evaluated(
    bench: LocalBench, plan: Plan, account: Account | None, trained: Callable[[Plan], list[float]]
) -> dict[str, Any]:
    """Returns what became of one plan: its outcome, its throughput and peaks, the error of its trace, its losses."""
    outcome = bench.evaluate(plan, Purpose.PROBE)
    found: dict[str, Any] = {"plan": plan.model_dump(mode="json")["values"], "status": outcome.status.value}
    found |= {"reason": outcome.reason, "phase": outcome.phase, "losses": None}
    if outcome.measurement is None:
        return found
    found |= _measured(outcome.measurement) | _traced(bench, plan, account)
    try:
        found["losses"] = trained(plan)
    except (AutofitError, RuntimeError) as error:
        found["reason"] = f"probed, but failed to train: {type(error).__name__}: {error}"
    return found


def _measured(measurement: Measurement) -> dict[str, Any]:
    memory = measurement.memory
    return {
        "samples_per_s": measurement.samples_per_s,
        "allocated_bytes": memory.allocated_bytes,
        "reserved_bytes": memory.reserved_bytes,
    }


def _traced(bench: LocalBench, plan: Plan, account: Account | None) -> dict[str, Any]:
    if account is None:
        return {"no_trace": "the memory of this device can only be measured"}
    try:
        use = estimators.memory_use(bench.trace(plan), account)
    except (AutofitError, Untraceable) as error:
        return {"no_trace": str(error)}
    return {"traced_allocated_bytes": use.allocated_bytes, "traced_reserved_bytes": use.reserved_bytes}


def objections(rows: Sequence[dict[str, Any]], baseline: Plan) -> list[str]:
    """Returns what is wrong with the plans that ran, in words."""
    expected, wrong = rows[0]["losses"], []
    for each in rows:
        name = difference(each["plan"], baseline)
        if each["status"] == Status.NOT_COMPILED and each["phase"] == COMPILING:
            continue
        if each["status"] not in (Status.MEASURED, Status.OVER_BUDGET) or each["losses"] is None:
            wrong.append(f"{name}: {each['status']}: {each['reason']}")
        elif expected is not None:
            changed = any(each["plan"].get(knob) != baseline.values.get(knob) for knob in CHANGED)
            losses = taken(each["losses"])
            found, most = apart(losses, expected), NEAR if changed else SAME
            if not found <= most:
                wrong.append(f"{name}: its losses differ by {found:.2g} of the user's plan, expected at most {most:g}")
    return wrong


def taken(losses: Sequence[float]) -> list[float]:
    """Returns the losses without repetitions: a step whose update the gradient scaler skipped changes no weight."""
    return [loss for at, loss in enumerate(losses) if at == 0 or loss != losses[at - 1]]


def apart(losses: Sequence[float], expected: Sequence[float]) -> float:
    """Returns the largest relative difference of two runs of losses, as far as both go; nan if one of them is nan."""
    found = [abs(one - other) / abs(other) for one, other in zip(losses, expected, strict=False)]
    return math.nan if any(map(math.isnan, found)) else max(found)


def difference(values: dict[str, KnobValue], baseline: Plan) -> str:
    """Returns the values in which a plan differs from the baseline."""
    changed = [f"{name}={value}" for name, value in values.items() if baseline.values.get(name) != value]
    return " ".join(changed) or "the user's plan"


def table(rows: Sequence[dict[str, Any]], baseline: Plan) -> dict[str, Any]:
    """Returns the rows as a table for the summary page."""
    first = rows[0].get("samples_per_s")
    shown = []
    for each in rows:
        speed = f"{each['samples_per_s'] / first:.3f}" if first and "samples_per_s" in each else "-"
        peak = format_bytes(each["allocated_bytes"]) if "allocated_bytes" in each else each["status"]
        traced = each.get("traced_allocated_bytes")
        error = f"{traced / each['allocated_bytes'] - 1:+.1%}" if traced else "-"
        losses = (
            f"{apart(taken(each['losses']), rows[0]['losses']):.1e}" if each["losses"] and rows[0]["losses"] else "-"
        )
        shown.append([difference(each["plan"], baseline), speed, peak, error, losses])
    return stage.table(["change", "speed", "allocated", "trace", "loss differs by"], shown)


def run(name: str, given: argparse.Namespace, clock: Clock) -> tuple[str, dict[str, Any], bool]:
    """Returns the summary of the stage, its figures, and whether the requirements are met."""
    make, device, rows = WORKLOADS[name], devices.choose(given.device), list[dict[str, Any]]()
    parts = stage.Parts(given.out / f"strategies-{name}.part.json")
    options, watch = Options(numerics="any", own_process=True), Watchdog(Clock(limit_s=given.limit_s))
    with LocalBench(make(given.scale), device, options, watch=watch) as bench:
        space, account = bench.briefing.space, bench.briefing.account
        plans = changes(space)
        train_it = partial(train, make, given.scale, device=device)
        for plan in plans:
            if plan.key not in parts and clock.elapsed_s > given.limit_s:
                stage.unfinished(f"strategies {name}: {len(rows)} of {len(plans)} plans", clock)
            rows.append(parts.get(plan.key, partial(evaluated, bench, plan, account, train_it)))
            print(f"{clock.elapsed_s:6.1f} s {difference(rows[-1]['plan'], space.baseline)}: {rows[-1]}", flush=True)
    parts.clear()
    wrong = objections(rows, space.baseline)
    summary = f"strategies {name}: {len(rows)} plans; {'; '.join(wrong) or 'all run and train alike'}"
    refused = {refusal.name: refusal.reason for refusal in space.refused}
    figures = {"workload": name, "rows": rows, "refused": refused, "table": table(rows, space.baseline)}
    return summary, figures, not wrong


def main() -> None:
    parser = stage.parser(__doc__ or "")
    parser.add_argument("workload", choices=tuple(WORKLOADS))
    given = stage.parse(parser)
    stage.conclude(f"strategies {given.workload}", given, lambda: run(given.workload, given, Clock()))


if __name__ == "__main__":
    main()
