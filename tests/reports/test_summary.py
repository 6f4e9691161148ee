"""The summary says what to use, what it gains, what was not chosen and why, in lines that fit a screen."""

from typing import Any

import pytest

from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.recommendation import Candidate, Ratio, Recommendation
from autofit.core.space import Refusal
from autofit.core.wording import describe_outcome, describe_plan
from autofit.reports.summary import summarize

OWN = Plan(values={"micro_batch_size": 8, "accumulation_steps": 4, "precision": "fp32", "fuse": False})
BEST = OWN.replace(micro_batch_size=32, accumulation_steps=1, precision="bf16")


def measurement(
    samples_per_s: float = 52384.7, peak_bytes: int = 3 * 2**20, tokens: float | None = None
) -> Measurement:
    memory = Memory(allocated_bytes=peak_bytes, judged_bytes=peak_bytes, judged_by="test")
    return Measurement(
        step_times_s=(32 / samples_per_s,) * 3,
        samples_per_step=32,
        memory=memory,
        worst_steps=4,
        tokens_per_step=tokens,
    )


def measured(**values: Any) -> Outcome:
    return Outcome(status=Status.MEASURED, measurement=measurement(**values))


def record(**changes: Any) -> Recommendation:
    fields: dict[str, Any] = {
        "plan": BEST,
        "proof": measurement(),
        "baseline": Candidate(plan=OWN, outcome=measured(samples_per_s=950)),
        "gain": Ratio(value=2.041, low=1.9, high=2.2, pairs=8),
        "budget": Budget(memory_bytes=2**30, memory_note="1 GiB as asked"),
        "objective": Objective(),
        "environment": Environment(
            workload="w", device_type="cpu", device_name="Chip 9", capacity_bytes=2**34, versions={"torch": "2.13"}
        ),
        "study": "/somewhere/study.db",
        "counts": {"measured": 7, "out of memory": 1},
        "duration_s": 83.0,
    }
    return Recommendation(**fields | changes)


def test_the_first_line_is_the_answer() -> None:
    assert summarize(record()).splitlines()[0] == (
        "Use micro batch 32, precision=bf16: 2.04x (1.90 to 2.20) of your own setting's throughput."
    )
    own = record(plan=OWN, gain=Ratio(value=1, low=1, high=1))
    assert summarize(own).startswith("Keep your own setting: micro batch 8 x 4 accumulation steps = 32. Nothing")
    failed = Candidate(plan=OWN, outcome=Outcome(status=Status.OUT_OF_MEMORY, reason="tried 9 GiB"))
    text = summarize(record(gain=None, baseline=failed))
    assert "your own setting does not run here" in text.splitlines()[0]
    assert "yours     micro batch 8 x 4 accumulation steps = 32: out of memory: tried 9 GiB" in text


def test_proof_baseline_limits_and_cost_are_told() -> None:
    lines = summarize(record()).splitlines()
    assert "plan      52,380 samples/s, peak 3 MiB; proven by 4 whole steps on the worst batch" in lines
    assert "yours     micro batch 8 x 4 accumulation steps = 32: 950 samples/s, peak 3 MiB" in lines
    assert "budget    1 GiB as asked" in lines
    assert "device    Chip 9 (cpu), torch 2.13" in lines
    assert "trials    7 measured, 1 out of memory in 1 min 23 s; study /somewhere/study.db" in lines


def test_the_best_five_alternatives_are_shown_with_why_they_lost() -> None:
    others = tuple(
        Candidate(plan=BEST.replace(micro_batch_size=size), outcome=measured(), note=f"a tie with {size}")
        for size in (1, 2, 4, 8, 16, 64, 128)
    )
    lines = summarize(record(alternatives=others)).splitlines()
    assert len([line for line in lines if line.startswith("also ")]) == 5
    assert "also      micro batch 1, precision=bf16: 52,380 samples/s, peak 3 MiB; a tie with 1" in lines
    assert "          and 2 more, in the plan file" in lines
    assert "more, in the plan file" not in summarize(record(alternatives=others[:5]))


def on_front(size: int, speed: float, peak: int, gain: float | None = None) -> Candidate:
    return Candidate(
        plan=BEST.replace(micro_batch_size=size),
        outcome=measured(samples_per_s=speed, peak_bytes=peak * 2**20),
        gain=None if gain is None else Ratio(value=gain, low=gain, high=gain, pairs=8),
        note=f"note {size}",
        on_front=True,
    )


def test_plans_that_save_more_memory_than_they_cost_speed_are_shown_as_lighter() -> None:
    proof = measurement(samples_per_s=100, peak_bytes=10 * 2**20)
    worth, dear, heavy = on_front(1, 90, 8), on_front(2, 40, 5), on_front(4, 120, 20)
    beside = [Candidate(plan=BEST.replace(micro_batch_size=64 << n), outcome=measured()) for n in range(6)]
    lines = summarize(record(proof=proof, gain=None, alternatives=(heavy, *beside, worth, dear))).splitlines()
    assert [line for line in lines if line.startswith("lighter")] == [
        "lighter   micro batch 1, precision=bf16: 90 samples/s, peak 8 MiB; note 1"
    ]
    assert any(line.startswith("also      micro batch 4,") for line in lines)
    assert "          and 3 more, in the plan file" in lines


def test_what_a_lighter_plan_costs_is_by_the_race_where_there_was_one() -> None:
    proof = measurement(samples_per_s=100, peak_bytes=10 * 2**20)
    # By its probe it is half as fast, and too dear; raced it was nine tenths.
    probed = on_front(1, 50, 8, gain=1.8)
    raced = probed.model_copy(update={"rate_per_s": 180.0})
    assert "lighter   micro batch 1" in summarize(record(proof=proof, rate_per_s=200.0, alternatives=(raced,)))
    assert "also      micro batch 1" in summarize(record(proof=proof, alternatives=(probed,)))


def test_at_most_three_lighter_plans_are_shown() -> None:
    proof = measurement(samples_per_s=100, peak_bytes=100 * 2**20)
    lighter = tuple(on_front(size, 90 - size, 20 - size) for size in range(1, 6))
    lines = summarize(record(proof=proof, gain=None, alternatives=lighter)).splitlines()
    assert [line[:24] for line in lines if line.startswith("lighter")] == [
        f"lighter   micro batch {size}," for size in (1, 2, 3)
    ]
    assert len([line for line in lines if line.startswith("also")]) == 2


def test_the_planned_training_and_what_its_start_is_charged_are_told() -> None:
    proof = measurement().model_copy(update={"startup_s": 12.5})
    own = measurement().model_copy(update={"startup_s": 0.25})
    baseline = Candidate(plan=OWN, outcome=Outcome(status=Status.MEASURED, measurement=own))
    planned = Objective(planned_samples=32000)
    text = summarize(record(objective=planned, proof=proof, baseline=baseline))
    assert "planned   32,000 samples, 1,000 steps of 32; charged for its start: 12.5 s, yours 250 ms" in text
    assert "planned   32,000 samples, 1,000 steps of 32\n" in summarize(record(objective=planned))
    assert "planned" not in summarize(record())


def test_notes_stand_before_what_was_left_out_which_is_last() -> None:
    refusals = (Refusal(name="fp16", reason="no such unit"), Refusal(name="checkpointing", reason="no blocks"))
    lines = summarize(record(caveats=("mind the rate",), refused=refusals)).splitlines()
    assert lines[-2:] == ["left out  fp16: no such unit", "left out  checkpointing: no blocks"]
    assert lines.index("note      mind the rate") < lines.index("left out  fp16: no such unit") - 1
    assert "left out" not in summarize(record())
    assert "note" not in summarize(record())
    assert not summarize(record()).endswith("\n")


def test_long_texts_are_wrapped_under_their_column_and_lose_nothing() -> None:
    long = " ".join(f"word{number}" for number in range(60))
    path = "/" + "x" * 300
    text = summarize(record(caveats=(long,), refused=(Refusal(name="a", reason=long + "\nmore"),), study=path))
    lines = text.splitlines()
    assert path in text
    assert max(len(line) for line in lines if path not in line) <= 120
    at = next(n for n, line in enumerate(lines) if line.startswith("note "))
    assert lines[at + 1].startswith(" " * 10 + "word")
    assert " ".join(" ".join(lines[at:]).split()).startswith(f"note {long}")
    assert text.count("word59") == 2
    assert text.rstrip().endswith("more")


@pytest.mark.parametrize(
    ("speed", "said"),
    [(0.03125, "0.03125"), (123.456, "123.5"), (999.96, "1,000"), (52384.7, "52,380"), (3.2e7, "32,000,000")],
)  # fmt: skip
def test_speeds_are_written_as_people_write_them(speed: float, said: str) -> None:
    assert describe_outcome(measured(samples_per_s=speed)).startswith(f"{said} samples/s")


def test_the_unit_is_the_objectives() -> None:
    assert describe_outcome(measured(samples_per_s=100, tokens=320), "tokens").startswith("1,000 tokens/s")
    assert describe_outcome(measured(samples_per_s=100), "tokens").startswith("100 samples/s")
    text = summarize(record(objective=Objective(unit="tokens"), proof=measurement(100, tokens=320)))
    assert "plan      1,000 tokens/s" in text


def test_a_plan_is_its_batch_and_what_it_changes() -> None:
    assert describe_plan(OWN, OWN) == "micro batch 8 x 4 accumulation steps = 32"
    assert describe_plan(BEST, OWN) == "micro batch 32, precision=bf16"


@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_b18_the_lines_fit_the_width(width: int) -> None:
    long = " ".join(f"word{number}" for number in range(60))
    others = tuple(
        Candidate(plan=BEST.replace(micro_batch_size=size), outcome=measured(), note=f"{long} {size}")
        for size in (1, 2)
    )
    text = summarize(record(caveats=(long,), alternatives=others, refused=(Refusal(name="a", reason=long),)), width)
    assert width - 10 < max(map(len, text.splitlines())) <= width
    assert " ".join(text.split()) == " ".join(summarize(record(
        caveats=(long,), alternatives=others, refused=(Refusal(name="a", reason=long),)), 10**6).split())  # fmt: skip


def test_b18_a_plan_of_the_same_memory_is_not_called_lighter() -> None:
    proof = measurement(samples_per_s=100, peak_bytes=10 * 2**20)
    for peak_bytes, called in ((10 * 2**20 - 4096, "also"), (round(9.8 * 2**20), "lighter")):
        same = on_front(1, 100, 1).model_copy(update={"outcome": measured(samples_per_s=100, peak_bytes=peak_bytes)})
        text = summarize(record(proof=proof, gain=None, alternatives=(same,)))
        assert [line.split()[0] for line in text.splitlines() if "note 1" in line] == [called]
