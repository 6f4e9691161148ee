"""Histories to draw: 20 jobs over 365 nights with planted events, a first night, and one full of hostile texts.

Planted, with night 364 as the last one: a regression of 6 % (gpt), a growth of memory of 1 % a night (unet), a plan
that does not fit any more (t5), code that fails (vit), a faster night and a better plan (clip), a replaced plan
(resnet50), a noisy week (bert), a new job (whisper), one that was not reached (llama), nights that were left out
(tabular), and for all jobs a new torch in night 150 and a new driver in night 300.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cache
from statistics import median

from autofit.core.answer import Ratio
from autofit.core.environment import Environment
from autofit.core.plan import Plan
from autofit.nightly.records import Figures, HistorySegment, NightRecord, NightResult, Verdict, VerdictKind

GIB = 2**30
FIRST = datetime(2025, 11, 26, 1, 0, tzinfo=UTC)
NIGHTS = 365
TORCH_NIGHT, DRIVER_NIGHT, PLAN_NIGHT, GROWTH_NIGHT = 150, 300, 250, 340
NOISY = range(200, 207)
FAILING = (170, 171, 172)
HOSTILE = (
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m\x00\ud800\ufffe]]>\"'&|`*_" + "A" * 10_000
)


@dataclass(frozen=True)
class Trained:
    """What a job trains.

    Attributes:
        name: name of the job.
        rate_per_s: throughput in the first night.
        peak_bytes: peak in the first night.
        unit: what the throughput counts.
        gain: throughput over the baseline.
        budget_bytes: memory budget.
        noise: relative noise from night to night.
    """

    name: str
    rate_per_s: float
    peak_bytes: int
    unit: str = "samples"
    gain: float = 1.6
    budget_bytes: int = 20 * GIB
    noise: float = 0.008


JOBS = (
    Trained("gpt", 48_200.0, int(15.1 * GIB), "tokens", 1.92),
    Trained("llama", 12_900.0, int(70.4 * GIB), "tokens", 1.41, 76 * GIB),
    Trained("bert", 1_840.0, int(11.2 * GIB), gain=2.1),
    Trained("vit", 905.0, int(17.8 * GIB), gain=1.73),
    Trained("t5", 31_400.0, int(18.9 * GIB), "tokens", 1.37),
    Trained("resnet50", 1_210.0, int(9.6 * GIB), gain=1.22, noise=0.004),
    Trained("unet", 214.0, int(14.2 * GIB), gain=1.55),
    Trained("clip", 2_310.0, int(16.0 * GIB), gain=1.81),
    Trained("whisper", 88.4, int(12.7 * GIB), gain=1.48),
    Trained("tabular", 152_000.0, int(0.41 * GIB), gain=1.06, budget_bytes=4 * GIB, noise=0.015),
    *(Trained(f"ranker-{part}", 320.0 + 90 * part, int((6 + part) * GIB), gain=1.3 + part / 20) for part in range(10)),
)


@cache
def year() -> dict[str, tuple[NightRecord, ...]]:
    """Returns the whole history of all jobs. It is made once: nobody changes it."""
    return history()


def history(nights: int = NIGHTS, jobs: Sequence[Trained] = JOBS) -> dict[str, tuple[NightRecord, ...]]:
    """Returns the records of jobs, each oldest first. With fewer nights, it is the last ones that remain."""
    return {job.name: _records(job, NIGHTS - nights) for job in jobs}


def result(found: Mapping[str, Sequence[NightRecord]]) -> NightResult:
    """Returns the last night of a history: gpt, unet, t5 and vit need attention, llama was not reached."""
    last = max(records[-1].night for records in found.values())
    records = tuple(records[-1] for records in found.values() if records[-1].night == last)
    return NightResult(
        night=last,
        records=records,
        problems=("jobs.yaml, line 41: found 'fsat' as accept; expected 'propose' or 'auto'",),
        unchecked={"llama": "the night's time of 2 h was over"} if "llama" in found else {},
        exit_code=5,
    )


def _records(job: Trained, first: int) -> tuple[NightRecord, ...]:
    noise = random.Random(job.name)
    rates, peaks, found = dict[str, list[float]](), dict[str, list[int]](), list[NightRecord]()
    for night in range(NIGHTS):
        drift = noise.gauss(0, job.noise)
        if _left_out(job, night):
            continue
        environment = _environment(job, night)
        plan = _plan(job, night)
        segment = HistorySegment.of(environment, plan)
        figures = None if _failure(job, night) else _figures(job, night, plan, drift, noise)
        past = rates.setdefault(segment.model_dump_json(), []), peaks.setdefault(segment.model_dump_json(), [])
        verdict = _failed(job, night) if figures is None else _judged(job, night, figures, past)
        verdict = verdict.model_copy(update={"changed": _changed(found, segment)}) if not verdict.changed else verdict
        if figures is not None:
            past[0].append(figures.rate_per_s)
            past[1].append(figures.peak_bytes)
        found.append(_record(job, night, environment, figures, verdict))
    return tuple(one for one in found if one.night >= _moment(first))


def _moment(night: int) -> str:
    return (FIRST + timedelta(days=night)).isoformat()


def _left_out(job: Trained, night: int) -> bool:
    weekend = (FIRST + timedelta(days=night)).weekday() >= 5
    return (
        (job.name == "whisper" and night < NIGHTS - 4)
        or (job.name == "llama" and night == NIGHTS - 1)
        or (job.name == "tabular" and weekend)
    )


def _environment(job: Trained, night: int) -> Environment:
    torch = "2.12.1+cu128" if night < TORCH_NIGHT else "2.13.0+cu130"
    driver = "570.86.15" if night < DRIVER_NIGHT else "580.65.06"
    other = "5.22.1" if night < NIGHTS - 1 else "5.23.0"
    return Environment(
        workload=f"{abs(hash_of(job.name)):08x}-9017afa2", device_type="cuda", device_name="NVIDIA H100 80GB HBM3",
        capacity_bytes=80 * GIB, threads=16, settings={"mode": "train", "optimizer": "AdamW"},
        versions={"python": "3.12.7", "torch": torch, "autofit": "0.1.0", "driver": driver, "transformers": other},
    )  # fmt: skip


def hash_of(name: str) -> int:
    """Returns a number that is the same in every process."""
    return random.Random(name).getrandbits(32)


def _plan(job: Trained, night: int) -> Plan:
    size = 64 if job.name == "resnet50" and night < PLAN_NIGHT else 32
    return Plan(values={"micro_batch_size": size, "accumulation_steps": 256 // size, "precision": "bf16"})


def _failure(job: Trained, night: int) -> bool:
    return (job.name == "vit" and night in (*FAILING, NIGHTS - 1)) or (job.name == "t5" and night == NIGHTS - 1)


def _figures(job: Trained, night: int, plan: Plan, drift: float, noise: random.Random) -> Figures:
    rate = job.rate_per_s * (1 + drift * (6 if job.name == "bert" and night in NOISY else 1))
    rate *= (1.02 if night >= TORCH_NIGHT else 1.0) * (1.012 if night >= DRIVER_NIGHT else 1.0)
    rate *= 1.07 if job.name == "resnet50" and night >= PLAN_NIGHT else 1.0
    rate *= {"gpt": 0.94, "clip": 1.053}.get(job.name, 1.0) if night == NIGHTS - 1 else 1.0
    peak = job.peak_bytes * (0.985 if night >= TORCH_NIGHT else 1.0)
    if job.name == "unet" and night >= GROWTH_NIGHT:
        peak *= 1.01 ** (night - GROWTH_NIGHT)
    rates = tuple(rate * (1 + noise.gauss(0, 0.004)) for _ in range(3))
    return Figures(plan=plan, rates_per_s=rates, peak_bytes=round(peak / 2**20) * 2**20, judged_by="footprint")


def _planted(job: Trained, night: int) -> bool:
    return (
        (job.name in ("gpt", "clip") and night == NIGHTS - 1)
        or (job.name == "unet" and night >= GROWTH_NIGHT)
        or (job.name == "bert" and night in NOISY)
    )


def _judged(job: Trained, night: int, figures: Figures, past: tuple[list[float], list[int]]) -> Verdict:
    """Returns a verdict by the median of 14 nights; a second measurement confirms what is planted, and nothing else."""
    rates, peaks = (values[-14:] for values in past)
    if len(rates) < 5:
        reason = f"{len(rates)} nights in this segment; at least 5 are compared"
        return Verdict(kind=VerdictKind.CANNOT_COMPARE, reason=reason, compared_nights=len(rates))
    middle, peak = median(rates), median(peaks)
    room = max(3 * 1.4826 * median(abs(rate - middle) for rate in rates), 0.02 * middle)
    high = round(1.02 * peak)
    slower, larger = figures.rate_per_s < middle - room, figures.peak_bytes > high
    kind = VerdictKind.REGRESSION if slower or larger else VerdictKind.STEADY
    kind = VerdictKind.FASTER if not larger and figures.rate_per_s > middle + room else kind
    unit = f"{job.unit}/s"
    reason = f"{figures.rate_per_s:,.0f} {unit}, expected {middle - room:,.0f} to {middle + room:,.0f}"
    if larger:
        reason = f"peak {figures.peak_bytes / GIB:.2f} GiB, expected at most {high / GIB:.2f} GiB"
    if not _planted(job, night) and kind is not VerdictKind.STEADY:
        kind, reason = VerdictKind.STEADY, f"{reason}; a second measurement was within it,"
    regression = kind is VerdictKind.REGRESSION
    return Verdict(
        kind=kind, reason=f"{reason} by {len(rates)} nights{'; measured twice' if regression else ''}",
        expected_per_s=middle, low_per_s=middle - room, high_per_s=middle + room, expected_bytes=int(peak),
        high_bytes=high, compared_nights=len(rates),
        changed=("transformers: 5.23.0, was 5.22.1",) if regression and night == NIGHTS - 1 else (),
    )  # fmt: skip


def _failed(job: Trained, night: int) -> Verdict:
    if job.name == "t5":
        reason = "out of memory in the backward pass: 18.9 GiB of 20 GiB were taken, 1.52 GiB more were needed"
        return Verdict(kind=VerdictKind.DOES_NOT_FIT, reason=reason)
    return Verdict(kind=VerdictKind.ERROR, reason="train.py, line 41: FileNotFoundError: /data/imagenet/index.json")


def _changed(found: Sequence[NightRecord], segment: HistorySegment) -> tuple[str, ...]:
    earlier = found[-1].segment if found else None
    return segment.changes(earlier) if earlier is not None else ()


def _record(
    job: Trained, night: int, environment: Environment, figures: Figures | None, verdict: Verdict
) -> NightRecord:
    plan, last = _plan(job, night), night == NIGHTS - 1
    proposed = None
    if job.name == "clip" and last:
        proposed = plan.replace(micro_batch_size=64, accumulation_steps=4, compile="default")
    if job.name == "resnet50" and night == PLAN_NIGHT - 1:
        proposed = _plan(job, PLAN_NIGHT)
    baseline, regression = Plan(values={"micro_batch_size": 16, "accumulation_steps": 16}), "regression"
    ratio = Ratio(value=job.gain, low=job.gain * 0.99, high=job.gain * 1.01, pairs=6)
    return NightRecord(
        id=f"{job.name}-{night}", job=job.name, night=_moment(night),
        at=(FIRST + timedelta(days=night, minutes=4)).isoformat(), duration_s=71.4, probes=8, unit=job.unit,
        environment=environment, segment=HistorySegment.of(environment, plan), budget_bytes=job.budget_bytes,
        accepted=figures, confirmation=_again(figures) if verdict.kind is VerdictKind.REGRESSION else None,
        baseline=None if figures is None else Figures(
            plan=baseline, rates_per_s=tuple(rate / job.gain for rate in figures.rates_per_s),
            peak_bytes=int(0.6 * figures.peak_bytes), judged_by="footprint",
        ),
        gain=None if figures is None else ratio, verdict=verdict,
        tuned="" if proposed is None else f"the verdict is {regression if job.name == 'resnet50' else 'faster'}",
        proposed=proposed, replaced=proposed is not None and job.name == "resnet50",
    )  # fmt: skip


def _again(figures: Figures | None) -> Figures | None:
    """Returns the figures of a second measurement."""
    if figures is None:
        return None
    return figures.model_copy(update={"rates_per_s": tuple(0.998 * rate for rate in figures.rates_per_s)})


def first_night() -> dict[str, tuple[NightRecord, ...]]:
    """Returns the history of a job after its first night."""
    one = history(1, JOBS[:1])["gpt"][0]
    verdict = Verdict(kind=VerdictKind.CANNOT_COMPARE, reason="0 nights in this segment; at least 5 are compared")
    return {"gpt": (one.model_copy(update={"verdict": verdict, "confirmation": None}),)}


def failing() -> dict[str, tuple[NightRecord, ...]]:
    """Returns the history of a job that never could be measured."""
    verdict = Verdict(kind=VerdictKind.ERROR, reason="ModuleNotFoundError: No module named 'train'")
    nothing = dict.fromkeys(("environment", "segment", "accepted", "baseline", "gain", "confirmation", "budget_bytes"))
    records = history(9, JOBS[:1])["gpt"]
    return {"gpt": tuple(one.model_copy(update={**nothing, "verdict": verdict}) for one in records)}


def hostile() -> dict[str, tuple[NightRecord, ...]]:
    """Returns a history in which every text that comes from users is hostile."""
    made = history(40, [replace(JOBS[0], name="gpt"), replace(JOBS[6], name="unet")])
    return {HOSTILE + name: tuple(_hostile(one, HOSTILE + name) for one in records) for name, records in made.items()}


def _hostile(one: NightRecord, name: str) -> NightRecord:
    plan = Plan(values={"micro_batch_size": 4, HOSTILE: HOSTILE})
    environment, segment, figures = one.environment, one.segment, one.accepted
    assert environment is not None
    assert segment is not None
    assert figures is not None
    texts = (HOSTILE, HOSTILE)
    verdict = one.verdict.model_copy(update={"reason": HOSTILE, "changed": texts})
    versions = {"torch": HOSTILE, "driver": f"{HOSTILE}{one.night > _moment(350)}", HOSTILE: HOSTILE}
    place = environment.model_copy(update={"device_name": HOSTILE, "workload": HOSTILE, "versions": versions})
    figures = figures.model_copy(update={"plan": plan, "judged_by": HOSTILE})
    return one.model_copy(
        update={
            "job": name, "verdict": verdict, "tuned": HOSTILE, "notes": texts, "unit": HOSTILE, "proposed": plan,
            "environment": place, "segment": HistorySegment.of(place, plan), "accepted": figures,
            "confirmation": figures, "baseline": figures,
        }
    )  # fmt: skip


def hostile_result() -> NightResult:
    """Returns the last night of the hostile history."""
    found = result(hostile())
    return found.model_copy(update={"problems": (HOSTILE,), "unchecked": {HOSTILE: HOSTILE}})
