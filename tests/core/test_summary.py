"""The recommendation in words: a person finds the choice, the gain, the proof, and what was left out."""

from typing import Any

from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.recommendation import Candidate, Ratio, Recommendation
from autofit.core.space import Refusal
from autofit.core.summary import describe_outcome, describe_plan, printable, summarize

OWN = Plan(values={"micro_batch_size": 8, "accumulation_steps": 4, "precision": "fp32"})
BEST = Plan(values={"micro_batch_size": 32, "accumulation_steps": 1, "precision": "bf16"})
GIB = 2**30


def measurement(step_s: float, samples: int = 32, tokens: float | None = None) -> Measurement:
    memory = Memory(allocated_bytes=3 * GIB, judged_bytes=3 * GIB, judged_by="x")
    return Measurement(
        step_times_s=(step_s,), samples_per_step=samples, tokens_per_step=tokens, memory=memory, worst_steps=3
    )


def measured(plan: Plan, step_s: float, note: str = "") -> Candidate:
    return Candidate(plan=plan, outcome=Outcome(status=Status.MEASURED, measurement=measurement(step_s)), note=note)


def recommendation(**changes: Any) -> Recommendation:
    fields: dict[str, Any] = {
        "plan": BEST,
        "proof": measurement(0.5, tokens=320.0),
        "baseline": measured(OWN, 1.0),
        "gain": Ratio(value=2.0, low=1.9, high=2.1, pairs=8),
        "budget": Budget(memory_bytes=4 * GIB, memory_note="4 GiB as asked"),
        "objective": Objective(),
        "environment": Environment(
            workload="a-b", device_type="cpu", device_name="A CPU", capacity_bytes=GIB, versions={"torch": "2.13"}
        ),
        "study": ".autofit/study.db",
        "counts": {"measured": 7, "out of memory": 1},
        "duration_s": 12.0,
    }
    return Recommendation(**(fields | changes))


def flat(text: str) -> str:
    return " ".join(text.split())


def test_the_first_line_says_what_to_use_and_what_it_gains() -> None:
    first = summarize(recommendation()).splitlines()[0]
    assert first == "Use micro batch 32, precision=bf16: 2.00x (1.90 to 2.10) of your own setting's throughput."


def test_a_kept_setting_and_one_that_does_not_run_are_said() -> None:
    kept = summarize(recommendation(plan=OWN))
    assert kept.startswith("Keep your own setting: micro batch 8 x 4 accumulation steps = 32. Nothing that was tried")
    failing = Candidate(plan=OWN, outcome=Outcome(status=Status.OUT_OF_MEMORY, reason="tried to allocate 2 GiB"))
    text = summarize(recommendation(baseline=failing, gain=None))
    assert "your own setting does not run here" in text
    assert "out of memory: tried to allocate 2 GiB" in text


def test_proof_baseline_budget_device_and_trials_are_there() -> None:
    text = flat(summarize(recommendation()))
    for part in (
        "64 samples/s, peak 3 GiB; proven by 3 whole steps on the worst batch",
        "micro batch 8 x 4 accumulation steps = 32: 32 samples/s, peak 3 GiB",
        "4 GiB as asked",
        "A CPU (cpu), torch 2.13",
        "7 measured, 1 out of memory in 12 s; study .autofit/study.db",
    ):
        assert part in text


def test_tokens_are_told_when_they_are_what_counts() -> None:
    text = summarize(recommendation(objective=Objective(unit="tokens")))
    assert "640 tokens/s, peak 3 GiB; proven" in text
    assert "32 samples/s" in text  # the baseline's tokens are not known


def test_alternatives_caveats_and_refusals_come_with_their_reasons() -> None:
    others = tuple(
        measured(BEST.replace(micro_batch_size=size, accumulation_steps=32 // size), 1.0, note="slower")
        for size in (1, 2, 4, 8, 16)
    )
    more = (*others, measured(BEST.replace(precision="fp16"), 1.0))
    text = summarize(
        recommendation(
            alternatives=more, caveats=("the loss was inferred",), refused=(Refusal(name="tf32", reason="no chip"),)
        )
    )
    assert text.count("; slower") == 5
    assert "precision=fp16" not in text
    assert "1 more" in text
    assert "the loss was inferred" in text
    assert "tf32: no chip" in text


def test_long_lines_are_wrapped_and_no_word_is_broken() -> None:
    path = "/a/very/long/path" * 12
    text = summarize(recommendation(caveats=("word " * 60, path)))
    assert path in text
    assert all(len(line) <= 120 for line in text.splitlines() if path not in line)


def test_a_plan_is_its_batch_and_what_differs() -> None:
    assert describe_plan(OWN, OWN) == "micro batch 8 x 4 accumulation steps = 32"
    assert describe_plan(OWN.replace(precision="bf16"), OWN).endswith("= 32, precision=bf16")
    assert describe_plan(Plan(values={"micro_batch_size": 2}), OWN) == "micro batch 2"


def test_an_outcome_is_its_speed_or_its_reason() -> None:
    over = Outcome(status=Status.OVER_BUDGET, reason="its peak is above", measurement=measurement(1.0))
    assert describe_outcome(over) == "over budget: its peak is above"
    assert describe_outcome(measured(OWN, 1.0).outcome) == "32 samples/s, peak 3 GiB"
    large = Outcome(status=Status.MEASURED, measurement=measurement(0.001, samples=52_381))
    assert describe_outcome(large).startswith("52,380,000 samples/s")


def test_control_sequences_of_other_peoples_texts_are_taken_out() -> None:
    assert printable("a\x1b[31mred\x1b[0m\x07 b\ttab\nline") == "ared b\ttab\nline"
