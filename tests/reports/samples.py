"""Reports to draw: a typical search, a large one, one without an answer, and one full of hostile texts."""

import math
import random
from collections.abc import Iterable

from autofit.core.answer import Ratio
from autofit.core.briefing import GateRecord
from autofit.core.environment import Environment
from autofit.core.estimate import Estimate
from autofit.core.space import Refusal
from autofit.memory.breakdown import Breakdown, Part
from autofit.memory.profile import Profile, StepPhase
from autofit.reports.report import (
    BATCH_ONLY,
    AnswerTime,
    LeftOut,
    PlanMemory,
    PlanRow,
    Racer,
    Report,
    Role,
    SpeedCurve,
)
from autofit.reports.sentences import brought

MIB, GIB = 2**20, 2**30
BUDGET = 20 * GIB
ENVIRONMENT = Environment(
    workload="afa23653-9017afa2",
    device_type="cuda",
    device_name="NVIDIA RTX 4090",
    capacity_bytes=24 * GIB,
    threads=8,
    versions={"python": "3.12.7", "torch": "2.13.0+cu130", "autofit": "0.1.0", "driver": "580.65"},
    settings={"mode": "train", "optimizer": "AdamW", "max_grad_norm": "1.0"},
)
SPEEDS = {  # samples per second on a long batch, bytes per sample, fixed bytes
    BATCH_ONLY: (310.0, 0.52, 3.1),
    "precision=bf16": (520.0, 0.31, 3.3),
    "precision=bf16, compile=default": (640.0, 0.27, 3.6),
    "precision=bf16, checkpointing=blocks": (455.0, 0.11, 3.2),
    "checkpointing=blocks": (262.0, 0.16, 3.0),
    "precision=bf16, compile=default, checkpointing=blocks": (548.0, 0.09, 3.6),
}
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\"'&" + "A" * 10_000


def values_of(combination: str, size: int, steps: int) -> dict[str, bool | int | str]:
    """Returns the values of a plan."""
    changes = dict(part.split("=") for part in combination.split(", ") if "=" in part)
    knobs: dict[str, bool | int | str] = {"precision": "fp32", "compile": "off", "checkpointing": "off"}
    return {"micro_batch_size": size, "accumulation_steps": steps} | knobs | changes


def label_of(combination: str, size: int, steps: int) -> str:
    batch = f"micro batch {size}" + (f" x {steps} accumulation steps = {size * steps}" if steps > 1 else "")
    return batch if combination == BATCH_ONLY else f"{batch}, {combination}"


def speed(combination: str, size: int) -> float:
    most = SPEEDS[combination][0]
    return most * size / (size + 9.0)


def peak(combination: str, size: int) -> int:
    _, per_sample, fixed = SPEEDS[combination]
    return int((fixed + per_sample * size) * GIB)


def row(combination: str, size: int, total: int = 256) -> PlanRow:
    """Returns a row without its rank, role and gain."""
    steps, needed = total // size, peak(combination, size)
    fits = needed <= BUDGET
    estimated = int(needed * (1 + 0.03 * math.sin(size + len(combination))))
    skipped = not fits and size > 64
    status = "measured" if fits else "skipped" if skipped else "out of memory"
    return PlanRow(
        rank=1,
        label=label_of(combination, size, steps),
        combination=combination,
        values=values_of(combination, size, steps),
        micro_batch_size=size,
        accumulation_steps=steps,
        status=status,
        reason="" if fits else "estimated to need more than the budget" if skipped else "CUDA out of memory",
        rate_per_s=speed(combination, size) if fits else None,
        peak_bytes=needed if fits else None,
        estimate=Estimate(
            value_bytes=estimated, lower_bytes=int(estimated * 0.94), upper_bytes=int(estimated * 1.08), basis="traced"
        ),
        duration_s=0.0 if skipped else 3.2 + size / 40,
    )


def ranked(rows: Iterable[PlanRow], chosen: str, baseline: str) -> tuple[PlanRow, ...]:
    """Returns rows in order, with ranks, roles, gains and the Pareto front; the plans are named by their label."""
    found = sorted(rows, key=lambda row: (-(row.rate_per_s or 0.0), row.peak_bytes or 0, row.label))
    own = next((row.rate_per_s for row in found if row.label == baseline), None)
    least, done = math.inf, list[PlanRow]()
    for rank, one in enumerate(found, 1):
        on_front = one.rate_per_s is not None and (one.peak_bytes or 0) < least
        least = min(least, one.peak_bytes or math.inf) if one.rate_per_s is not None else least
        gain = one.rate_per_s / own if own and one.rate_per_s is not None else None
        role = "recommended" if one.label == chosen else "baseline" if one.label == baseline else ""
        update = {
            "rank": rank,
            "role": role,
            "is_baseline": one.label == baseline,
            "on_front": on_front,
            "gain": None
            if gain is None
            else Ratio(value=gain, low=gain * 0.988, high=gain * 1.012, pairs=8 if role else 0),
        }
        done.append(one.model_copy(update=update))
    return tuple(done)


def curves_of(rows: Iterable[PlanRow]) -> tuple[SpeedCurve, ...]:
    """Returns the curves of rows, fastest first."""
    by_name: dict[str, list[PlanRow]] = {}
    for one in rows:
        by_name.setdefault(one.combination, []).append(one)
    found = []
    for name, members in by_name.items():
        members.sort(key=lambda one: one.micro_batch_size)
        measured = tuple(one.rank for one in members if one.rate_per_s is not None)
        refused = tuple(one.micro_batch_size for one in members if one.rate_per_s is None)
        if len(measured) > 1:
            found.append(SpeedCurve(combination=name, ranks=measured, refused_sizes=refused))
    return tuple(found)


def profile(total: int, accumulation: int = 1) -> Profile:
    """Returns the profile of a step: memory rises in the forward pass and falls in the backward pass."""
    live, phases, standing = list[int](), list[StepPhase](), int(total * 0.2)
    for name in [*("forward", "backward") * accumulation, "optimizer"]:
        start, points = len(live), 40 if name == "optimizer" else 100 // accumulation
        for place in range(points):
            share = place / points
            level = {"forward": share, "backward": 1 - share * share, "optimizer": 0.1}[name]
            ripple = 0.05 * abs(math.sin(place * 1.7))
            live.append(int(standing + (total * 0.92 - standing) * (0.94 * level + ripple)))
        phases.append(StepPhase(name=name, start=start, end=len(live)))
    parts = [
        ("activation", 0.46), ("optimizer state", 0.16), ("gradient", 0.08), ("parameter", 0.08), ("temporary", 0.1),
        ("batch", 0.002), ("allocator's cache and rounding", 0.08), ("context and libraries", 0.038),
    ]  # fmt: skip
    modules = [
        ("transformer.h.*.attn", 0.2, 12), ("transformer.h.*.mlp.c_fc", 0.12, 12),
        ("transformer.h.*.mlp.act", 0.09, 12), ("lm_head", 0.06, 1), ("transformer.h.*.ln_1", 0.03, 12),
        ("transformer.h.*.ln_2", 0.03, 12), ("transformer.wte", 0.01, 1), ("transformer.drop", 0.008, 1),
        ("transformer.ln_f", 0.007, 1), ("outside any module", 0.005, 1),
    ]  # fmt: skip
    breakdown = Breakdown(
        moment="backward",
        allocated_bytes=int(total * 0.88),
        reserved_bytes=int(total * 0.96),
        kinds=tuple(Part(name=name, size_bytes=int(total * share)) for name, share in parts),
        modules=tuple(Part(name=name, size_bytes=int(total * share), count=count) for name, share, count in modules),
        standing=(Part(name="parameter", size_bytes=int(total * 0.08)),),
    )
    shares = {"parameter": 0.4, "optimizer state": 0.6}
    kinds = {name: tuple(int(standing * share) for _ in live) for name, share in shares.items()}
    kinds["activation"] = tuple(value - sum(each[0] for each in kinds.values()) for value in live)
    return Profile(breakdown=breakdown, peak_bytes=total, live_bytes=tuple(live), kinds=kinds, phases=tuple(phases))


def racers_of(rows: tuple[PlanRow, ...]) -> tuple[Racer, ...]:
    noise = random.Random(7)
    found = []
    for one in [row for row in rows if row.rate_per_s is not None and not row.is_baseline][:3]:
        if one.gain is None:
            continue
        value = one.gain.value
        ratio = Ratio(value=value, low=value * 0.988, high=value * 1.012, pairs=8)
        ratios = tuple(value * (1 + noise.gauss(0, 0.01)) for _ in range(8))
        note = "" if one.role == "recommended" else "surely behind after 8 rounds"
        found.append(Racer(rank=one.rank, ratio=ratio, ratios=ratios, note=note))
    return tuple(found)


def answers_of(rows: tuple[PlanRow, ...]) -> tuple[AnswerTime, ...]:
    """Returns answers that begin with the baseline and end with the recommended plan, at most five."""
    measured = [one for one in reversed(rows) if one.rate_per_s is not None]
    first = next((place for place, one in enumerate(measured) if one.is_baseline), len(measured))
    faster = measured[first:]
    found = faster if len(faster) < 6 else [faster[0], *faster[1 : -1 : max(len(faster) // 4, 1)][:3], faster[-1]]
    times = (5.2, 12.4, 19.0, 41.3, 58.8)
    return tuple(
        AnswerTime(
            at_s=at_s, rank=one.rank, rate_per_s=one.rate_per_s or 0.0, ratio=one.gain.value if one.gain else None
        )
        for at_s, one in zip(times, found, strict=False)
    )


def report(rows: Iterable[PlanRow], chosen: str, baseline: str, **changes: object) -> Report:
    """Returns a report of some plans."""
    found = ranked(rows, chosen, baseline)
    best = next((one for one in found if one.role == "recommended"), None)
    own = next((one for one in found if one.is_baseline), None)
    roles: tuple[tuple[Role, PlanRow | None], ...] = (("recommended", best), ("baseline", own))
    memory = [
        PlanMemory(role=role, label=one.label, profile=profile(one.peak_bytes, 2 if one.accumulation_steps > 1 else 1))
        for role, one in roles
        if one is not None and one.peak_bytes and (role == "recommended" or one is not best)
    ]  # fmt: skip
    gain = brought(best.gain, "samples") if best and best.gain else "Use it: the baseline does not run here."
    made = Report(
        title="examples/gpt.py:make_workload",
        headline=gain if best else "No plan fits the budget.",
        chosen=f"The plan: {best.label}." if best else "",
        feasible=best is not None,
        unit="samples",
        global_batch_size=256,
        budget_bytes=BUDGET,
        budget_note="24 GiB less 1.92 GiB headroom (8 %) and 2.08 GiB used by other processes",
        rows=found,
        curves=curves_of(found),
        race=racers_of(found),
        race_reference="baseline" if racers_of(found) else "",
        answers=answers_of(found),
        memory=tuple(memory),
        gates=(
            GateRecord(name="accumulation", passed=True, reason="relative L2 of the gradient 3.1e-06, allowed 1e-03"),
            GateRecord(name="precision=bf16", passed=True, reason="cosine 0.99994 (at least 0.999), relative L2 0.011"),
            GateRecord(name="precision=fp16", passed=False, reason="gradient is not finite in 3 of 148 tensors"),
        ),
        left_out=(
            LeftOut(label="micro batch 128, precision=tf32", basis="estimated", reason="estimated at 410 samples/s"),
        ),
        refused=(
            Refusal(name="memory_format", reason="the model has no 2-d convolution"),
            Refusal(name="precision=fp16", reason="a gate failed: gradient is not finite"),
        ),
        caveats=(
            "The loss was inferred from the model's output (.loss).",
            "Another process used 1.3 GiB of the device during the search.",
        ),
        environment=ENVIRONMENT,
        study=".autofit/studies/gpt.db",
        counts={"measured": sum(one.status == "measured" for one in found), "out of memory": 2, "skipped": 4},
        stopped="nothing left can win by more than the tie margin",
        duration_s=212.0,
        created="2026-11-24T20:11:08+00:00",
        apply_code='import autofit\n\nfit = autofit.load("autofit.yaml")\n'
        "step = fit.prepare(model, loader, optimizer)\n"
        "for batch in step.loader:\n    loss = step(batch)\n",
        command="autofit tune examples/gpt.py:make_workload -o autofit.yaml --global-batch 256 --memory 20GiB",
        plan_file="autofit.yaml",
    )
    return made.model_copy(update=changes)


_SIZES = {BATCH_ONLY: (8, 16, 32, 64), "precision=bf16": (16, 32, 64), "precision=bf16, compile=default": (16, 32, 64),
          "precision=bf16, checkpointing=blocks": (32, 64, 128), "checkpointing=blocks": (64,),
          "precision=bf16, compile=default, checkpointing=blocks": (64, 128)}  # fmt: skip
BASELINE = label_of(BATCH_ONLY, 16, 16)


def typical(**changes: object) -> Report:
    """Returns the report of a search with 16 plans: a gain of two, a race, and two plans that do not fit."""
    rows = [row(combination, size) for combination, sizes in _SIZES.items() for size in sizes]
    chosen = max((one for one in rows if one.rate_per_s), key=lambda one: one.rate_per_s or 0.0)
    return report(rows, chosen.label, BASELINE, **changes)


def large(count: int = 500) -> Report:
    """Returns the report of a study with many plans."""
    noise, rows = random.Random(3), list[PlanRow]()
    names = list(SPEEDS)
    for number in range(count):
        one = row(names[number % len(names)], 1 + number // len(names), 1 + number // len(names))
        rate = None if one.rate_per_s is None else one.rate_per_s * (1 + noise.gauss(0, 0.02))
        knob = f", threads={number % 4}"
        rows.append(one.model_copy(update={"rate_per_s": rate, "label": one.label + knob}))
    best = max((one for one in rows if one.rate_per_s), key=lambda one: one.rate_per_s or 0.0)
    own = next(one for one in rows if one.combination == BATCH_ONLY and one.micro_batch_size == 16)
    return report(rows, best.label, own.label)


def infeasible() -> Report:
    """Returns the report of a study in which no plan fits."""
    rows = [row(name, size) for name in (BATCH_ONLY, "precision=bf16") for size in (64, 128, 256)]
    rows = [one for one in rows if one.rate_per_s is None]
    caveats = ("The smallest plan that was tried needs 36.4 GiB of 20 GiB.",)
    return report(rows, "", BASELINE, cause="no plan fits the budget of 20 GiB", caveats=caveats)


def kept() -> Report:
    """Returns the report of a search whose answer is the baseline."""
    rows = [row(BATCH_ONLY, size) for size in (8, 16, 32)]
    best = label_of(BATCH_ONLY, 32, 8)
    return report(rows, best, best, headline=f"Keep the baseline: {best}. Nothing that was tried is faster.")


def bounded() -> Report:
    """Returns a report in which the estimate of the baseline holds for all possible data."""
    made = typical()
    worst = {"value_bytes": 20 * GIB, "lower_bytes": None, "upper_bytes": 21 * GIB, "worst_case": True}
    rows = tuple(
        one.model_copy(update={"estimate": one.estimate.model_copy(update=worst)})
        if one.is_baseline and one.estimate
        else one
        for one in made.rows
    )
    return made.model_copy(update={"rows": rows})


def bare() -> Report:
    """Returns the report of an earlier study, without a race, estimates and traces."""
    made = typical(race=(), race_reference="", memory=(), curves=(), gates=(), left_out=(), command="", apply_code="")
    made = made.model_copy(update={"answers": ()})
    rows = tuple(one.model_copy(update={"estimate": None}) for one in made.rows)
    missing = ("The memory of the plans: the study was written by a version that did not keep it.",)
    return made.model_copy(update={"rows": rows, "missing": missing})


def hostile() -> Report:
    """Returns a report in which every text that comes from users' code is hostile."""
    made = typical()
    rows = tuple(
        one.model_copy(update={"label": HOSTILE, "combination": HOSTILE + one.combination, "reason": HOSTILE})
        for one in made.rows
    )
    memory = tuple(one.model_copy(update={"label": HOSTILE}) for one in made.memory)
    breakdown = memory[0].profile.breakdown.model_copy(update={"modules": (Part(name=HOSTILE, size_bytes=GIB),)})
    memory = (
        memory[0].model_copy(update={"profile": memory[0].profile.model_copy(update={"breakdown": breakdown})}),
        *memory[1:],
    )
    curves = tuple(one.model_copy(update={"combination": HOSTILE + one.combination}) for one in made.curves)
    hostile_environment = ENVIRONMENT.model_copy(update={"device_name": HOSTILE, "settings": {HOSTILE: HOSTILE}})
    return made.model_copy(
        update={
            "title": HOSTILE,
            "headline": HOSTILE,
            "failure": HOSTILE,
            "budget_note": HOSTILE,
            "rows": rows,
            "memory": memory,
            "curves": curves,
            "caveats": (HOSTILE,),
            "missing": (HOSTILE,),
            "gates": (GateRecord(name=HOSTILE, passed=False, reason=HOSTILE),),
            "left_out": (LeftOut(label=HOSTILE, basis="measured", reason=HOSTILE),),
            "refused": (Refusal(name=HOSTILE, reason=HOSTILE),),
            "environment": hostile_environment,
            "study": HOSTILE,
            "command": HOSTILE,
            "apply_code": HOSTILE,
            "plan_file": HOSTILE,
            "created": HOSTILE,
            "stopped": HOSTILE,
        }
    )


ALL = {
    "typical": typical, "large": large, "infeasible": infeasible, "kept": kept, "bounded": bounded, "bare": bare,
    "hostile": hostile,
}  # fmt: skip
"""Every sample by name."""
