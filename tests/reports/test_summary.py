"""An answer in words, with the plan for evaluation, for a terminal."""

import re
from typing import Any

import pytest

from autofit.core.answer import Answer, Candidate, Ratio
from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.estimate import Estimate
from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import Refusal, StrategyRecord
from autofit.core.wording import describe_outcome, describe_plan
from autofit.reports.canvas import Canvas
from autofit.reports.sentences import headline
from autofit.reports.summary import brief, evaluation_sentences, summarize
from autofit.terminal import cells

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


def record(**changes: Any) -> Answer:
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
        "study": "/somewhere/study.journal",
        "counts": {"measured": 7, "out of memory": 1},
        "duration_s": 83.0,
    }
    return Answer(**fields | changes)


WIDTHS = (40, 60, 80, 100, 120)


def sections(text: str) -> dict[str, list[str]]:
    """Returns the sections by the beginning of their titles."""
    blocks = [block.splitlines() for block in text.split("\n\n")]
    return {re.split(r"  +", lines[0])[0]: lines for lines in blocks}


def test_the_first_line_is_the_answer() -> None:
    lines = summarize(record()).splitlines()
    assert lines[0] == "Use micro batch 32, precision=bf16: 2.04x (1.90 to 2.20) the throughput of the baseline."
    assert lines[1] == "Proven by 4 whole steps on the worst batch, inside the budget."
    apart = " ".join(summarize(record(gain=Ratio(value=29.3, low=16.4, high=52.3))).split("\n\n")[0].split())
    assert "29.3x (16.4 to 52.3) the throughput of the baseline. The two were not compared side by side." in apart
    assert "side by side" not in " ".join(lines[:3])
    kept = summarize(record(plan=OWN, gain=Ratio(value=1, low=1, high=1)))
    assert kept.startswith(
        "Keep the baseline: micro batch 8 x 4 accumulation steps = 32. Nothing that was tried is faster.\n"
    )


def test_a_proof_that_contradicts_the_throughput_shown_names_its_own() -> None:
    proven = "Proven by 4 whole steps on the worst batch, inside the budget"
    for proof_per_s, end in ((27_470, ", at 27,470 samples/s."), (47_470, ".")):
        proof = measurement(samples_per_s=proof_per_s).model_copy(update={"warmup_times_s": (0.1,)})
        assert summarize(record(proof=proof, rate_per_s=54_530.0)).splitlines()[1] == f"{proven}{end}"


def test_the_sections_come_in_the_order_in_which_they_are_needed_and_the_code_is_last() -> None:
    others = (Candidate(plan=BEST.replace(micro_batch_size=1), outcome=measured(), note="slower"),)
    titles = list(sections(summarize(record(caveats=("mind the rate",), alternatives=others), plan_file="a.yaml")))
    assert [title.partition(" ")[0] for title in titles] == ["Use", "What", "What", "What", "What", "How", "How"]
    assert titles[1:] == [
        "What it brings", "What it changes", "What else was tried", "What to know", "How it was found", "How to use it"
    ]  # fmt: skip


def test_throughput_and_peak_stand_beside_those_of_the_baseline_and_the_budget() -> None:
    found = record(rate_per_s=1939.0, baseline=Candidate(plan=OWN, outcome=measured(samples_per_s=950), rate_per_s=950))
    assert sections(summarize(found))["What it brings"] == [
        "What it brings  baseline  recommended",
        "  samples/s          950        1,939  2.04x (1.90 to 2.20)",
        "  peak memory      3 MiB        3 MiB  budget 1 GiB",
    ]


def test_a_record_without_rates_is_put_on_one_scale_by_its_ratios() -> None:
    """The proof of 52,380 samples/s is of another run than the baseline's 950, which it did not beat 55 times."""
    text = summarize(record())
    assert "1,939" in text
    assert "52,380" not in text


def test_what_changes_is_named_with_its_old_and_new_value() -> None:
    assert sections(summarize(record()))["What it changes"] == [
        "What it changes       baseline  recommended",
        "  micro batch                8           32",
        "  accumulation steps         4            1",
        "  precision               fp32         bf16",
    ]
    grown = sections(summarize(record(plan=BEST.replace(micro_batch_size=64))))
    assert "  samples per step          32           64" in grown["What it changes"]
    assert "; the global batch grows from 32 to 64." in " ".join(grown[next(iter(grown))])


PRECISION = StrategyRecord(
    name="precision", knobs=("precision",), about="computes in bf16", cost="digits of the gradient", effect="rounding"
)
FUSING = StrategyRecord(name="fusing", knobs=("fuse",), about="fuses kernels", cost="nothing", effect="exact")


def test_each_technique_has_a_line_on_what_it_does_costs_and_changes() -> None:
    assert sections(summarize(record(strategies=(PRECISION, FUSING))))["What each strategy does"] == [
        "What each strategy does",
        "  precision: computes in bf16; costs digits of the gradient; results differ by rounding",
        "  fusing: fuses kernels; costs nothing; results are the same",
    ]
    assert "What each strategy does" not in sections(summarize(record()))


def test_a_kept_baseline_changes_nothing_and_there_is_nothing_to_apply() -> None:
    text = summarize(record(plan=OWN, gain=Ratio(value=1, low=1, high=1)), plan_file="a.yaml")
    found = sections(text)
    assert "What it changes" not in found
    assert found["What it brings"][0].split() == ["What", "it", "brings", "baseline"]
    assert "1.00x" not in text
    assert text.endswith("  Nothing to apply: train as you do now.")


def test_a_baseline_that_does_not_run_is_shown_with_its_outcome_and_without_a_gain() -> None:
    failed = Candidate(plan=OWN, outcome=Outcome(status=Status.OUT_OF_MEMORY, reason="tried 9 GiB"))
    text = summarize(record(gain=None, baseline=failed))
    assert text.startswith("Use micro batch 32, precision=bf16. The baseline does not run here.\n")
    assert "samples/s out of memory 52,380" in " ".join(text.split())
    assert not re.search(r"\d\.\d\dx", text)


def test_a_baseline_that_was_never_run_is_not_called_one_that_does_not_run() -> None:
    reason = "needs at least 3.75 GiB, above the budget of 1 GiB (measured 2 GiB at micro batch 4)"
    baseline = Candidate(plan=OWN, outcome=Outcome(status=Status.SKIPPED, reason=reason))
    r = record(gain=None, baseline=baseline)
    text = " ".join(summarize(r).split())
    why = "he baseline was not run: needs at least 3.75 GiB, above the budget of 1 GiB."
    assert f"Use micro batch 32, precision=bf16. T{why}" in text
    assert "samples/s not run 52,380" in text
    assert f": t{why}" in headline(r)
    for absent in ("does not run", "skipped"):
        assert absent not in text


def test_every_gain_has_its_interval() -> None:
    ratio = Ratio(value=0.9, low=0.8, high=1.0, pairs=8)
    note = f"{ratio} of the recommended plan's throughput, in 8 paired blocks"
    others = (Candidate(plan=BEST.replace(micro_batch_size=1), outcome=measured(), gain=ratio, note=note),)
    for width in WIDTHS:
        text = " ".join(summarize(record(alternatives=others), Canvas(width)).split())
        assert len(re.findall(r"\d\.\d\dx", text)) == len(re.findall(r"\d\.\d\dx \(\d\.\d\d to \d\.\d\d\)", text)) >= 3


def test_the_planned_training_and_the_warm_up_are_shown() -> None:
    proof = measurement().model_copy(update={"startup_s": 12.5})
    own = measurement().model_copy(update={"startup_s": 0.25})
    baseline = Candidate(plan=OWN, outcome=Outcome(status=Status.MEASURED, measurement=own))
    planned = Objective(planned_samples=32000)
    text = summarize(record(objective=planned, proof=proof, baseline=baseline))
    assert "warm-up 250 ms 12.5 s" in " ".join(text.split())
    assert "  planned   32,000 samples, 1,000 steps of 32; warm-up is part of samples/s\n" in text
    assert "warm-up" not in summarize(record())


def test_the_most_important_caveats_are_shown_and_the_others_counted() -> None:
    caveats = tuple(f"caveat {number}" for number in range(8))
    shown = sections(summarize(record(caveats=caveats), plan_file="a.yaml"))["What to know"]
    assert shown == ["What to know", *(f"  - caveat {n}" for n in range(5)), "  and 3 more in a.yaml"]
    assert "  and 3 more in fit.caveats" in summarize(record(caveats=caveats))
    assert "more in" not in summarize(record(caveats=caveats[:6]))  # one line for one caveat
    assert "What to know" not in summarize(record())


def test_the_facts_name_budget_device_cost_and_what_was_left_out() -> None:
    refusals = tuple(Refusal(name=f"knob{n}", reason=f"reason {n}") for n in range(5))
    assert sections(summarize(record(refused=refusals)))["How it was found"][1:] == [
        "  budget    1 GiB as asked",
        "  device    Chip 9 (cpu), torch 2.13",
        "  trials    7 measured, 1 out of memory in 1 min 23 s; study /somewhere/study.journal",
        "  left out  knob0: reason 0",
        "  left out  knob1: reason 1",
        "  left out  knob2: reason 2",
        "            and 2 more in fit.answer.refused",
    ]
    assert "left out" not in summarize(record())


def test_the_last_lines_are_code_that_applies_the_plan() -> None:
    assert summarize(record(), plan_file="a.yaml").splitlines()[-6:] == [
        "How to use it",
        '  fit = autofit.load("a.yaml")',
        "  # with the loss_fn or step_fn of tune",
        "  step = fit.prepare(model, loader, optimizer)",
        "  for batch in step.loader:",
        "      loss = step(batch)",
    ]
    inference = record().environment.model_copy(update={"settings": {"mode": "inference"}})
    code = summarize(record(environment=inference)).splitlines()[-3:]
    assert code[0] == "  step = fit.prepare(model, loader)"
    assert code[-1] == "      output = step(batch)"
    for width in WIDTHS:
        lines = summarize(record(), Canvas(width), "a.yaml").splitlines()
        code = lines[lines.index("How to use it") + 1 :]
        compile("\n".join(line[2:] for line in code), "code", "exec")


def test_long_texts_are_wrapped_under_their_column_and_lose_nothing() -> None:
    long = " ".join(f"word{number}" for number in range(60))
    path = "/" + "x" * 300
    text = summarize(record(caveats=(long,), refused=(Refusal(name="a", reason=long + "\nmore"),), study=path))
    lines = text.splitlines()
    assert path in text
    assert max(len(line) for line in lines if path not in line) <= 100
    at = next(n for n, line in enumerate(lines) if line.startswith("  - word0 "))
    assert lines[at + 1].startswith("    word")
    assert f"- {long}" in " ".join(" ".join(lines[at:]).split())
    assert "word59 more" in text


@pytest.mark.parametrize("width", WIDTHS)
def test_b18_the_lines_fit_the_width(width: int) -> None:
    long = " ".join(f"内word{number}" for number in range(60))
    others = tuple(
        Candidate(
            plan=BEST.replace(micro_batch_size=size, attention="内存" * 4),
            outcome=measured(),
            gain=Ratio(value=0.9, low=0.8, high=1.0),
            note=f"{long} {size}",
        )
        for size in (1, 2)
    )
    found = record(caveats=(long,), alternatives=others, refused=(Refusal(name="a", reason=long),))
    lines = summarize(found, Canvas(width), "a.yaml").splitlines()
    assert width - 12 < max(map(cells, lines)) <= width


def test_hostile_texts_cannot_command_the_terminal() -> None:
    hostile = "\x1b[2J\x07bad\u202e text\r\n</script>"
    plan = BEST.replace(attention=hostile)
    others = (Candidate(plan=plan, outcome=measured(), note=hostile),)
    found = record(plan=plan, caveats=(hostile,), alternatives=others, refused=(Refusal(name=hostile, reason=hostile),))
    text = summarize(found, plan_file="a.yaml")
    assert not {"\x1b", "\x07", "\u202e", "\r"} & set(text)


def test_colours_are_only_added() -> None:
    found = record(caveats=("mind the rate",))
    plain, coloured = summarize(found), summarize(found, Canvas(colour=True))
    assert "\x1b" not in plain
    assert re.sub(r"\x1b\[\d*m", "", coloured) == plain
    assert coloured.startswith("\x1b[32mUse ")
    unsure = summarize(record(gain=Ratio(value=1.1, low=0.9, high=1.3)), Canvas(colour=True))
    assert unsure.startswith("\x1b[1mUse ")


def test_the_unit_is_the_objectives() -> None:
    assert describe_outcome(measured(samples_per_s=100, tokens=320), "tokens").startswith("1,000 tokens/s")
    assert describe_outcome(measured(samples_per_s=100), "tokens").startswith("100 samples/s")
    text = summarize(record(objective=Objective(unit="tokens"), proof=measurement(100, tokens=320), gain=None))
    assert "  tokens/s           950        1,000\n" in text


@pytest.mark.parametrize(
    ("speed", "said"),
    [(0.03125, "0.03125"), (123.456, "123.5"), (999.96, "1,000"), (52384.7, "52,380"), (3.2e7, "32,000,000")],
)  # fmt: skip
def test_speeds_are_written_as_people_write_them(speed: float, said: str) -> None:
    assert describe_outcome(measured(samples_per_s=speed)).startswith(f"{said} samples/s")


def test_a_plan_is_its_batch_and_what_it_changes() -> None:
    assert describe_plan(OWN, OWN) == "micro batch 8 x 4 accumulation steps = 32"
    assert describe_plan(BEST, OWN) == "micro batch 32, precision=bf16"


def test_an_upper_bound_is_not_an_error_of_the_estimate() -> None:
    bound = Estimate(value_bytes=2**25, upper_bytes=2**25, worst_case=True)
    text = summarize(record(estimate=bound))
    assert "  estimate  32 MiB before it ran, an upper bound (sizes depend on the data)\n" in text
    assert "from the measured peak" in summarize(record(estimate=bound.model_copy(update={"worst_case": False})))


def test_the_brief_form_has_the_answer_on_a_screen_and_says_where_the_rest_is() -> None:
    caveats = tuple(f"caveat {number}" for number in range(9))
    found = record(caveats=caveats, strategies=(PRECISION, FUSING))
    text = brief(found, plan_file="a.yaml")
    assert len(text.splitlines()) <= 28 < len(summarize(found, plan_file="a.yaml").splitlines())
    assert text.splitlines()[:2] == summarize(found).splitlines()[:2]
    titles = ["What it brings", "What it changes", "What to know", "How to use it"]
    assert [title for title in sections(text) if title.startswith(("What it", "What to", "How"))] == titles
    assert text.splitlines()[-1] == "What else was tried, and how it was found: autofit show a.yaml"
    assert brief(found).splitlines()[-1].endswith("fit.details()")


BUDGET = Budget(memory_bytes=2**30, memory_note="2 GiB of the training - 1 GiB that it keeps beside the model = 1 GiB")


def training(**changes: object) -> Answer:
    return record(evaluation=record(budget=BUDGET, **changes))


def test_a_training_without_evaluation_has_no_such_section() -> None:
    assert evaluation_sentences(record()) == ()
    assert "Evaluation" not in summarize(record())


def test_the_plan_its_speed_and_its_budget_are_shown_with_the_code() -> None:
    found = sections(summarize(training(), Canvas(width=120)))
    text = " ".join(" ".join(found["Evaluation"]).split())
    assert text == (
        "Evaluation Use micro batch 32, precision=bf16: 1,939 samples/s, 2.04x (1.90 to 2.20) the throughput of "
        "eval_loader's batch. Peak 3 MiB, beside what the training keeps. Budget 2 GiB of the training - 1 GiB that it "
        "keeps beside the model = 1 GiB."
    )
    assert found["How to use it"][-3:] == [
        "  with fit.evaluation.prepare(model, eval_loader) as step:",
        "      for batch in step.loader:",
        "          output = step(batch)",
    ]


def test_the_brief_form_has_it_too() -> None:
    assert sections(brief(training()))["Evaluation"] == sections(summarize(training()))["Evaluation"]


def test_a_batch_that_is_kept_needs_no_code() -> None:
    text = summarize(training(plan=OWN, gain=None))
    assert "Keep the batch of eval_loader: micro batch 8 x 4" in " ".join(text.split())
    assert "fit.evaluation" not in text


def test_the_baseline_of_the_training_may_be_kept_and_evaluation_changed() -> None:
    kept = record(plan=OWN, gain=None, evaluation=record(plan=BEST))
    lines = sections(summarize(kept, plan_file="a.yaml"))["How to use it"]
    assert lines[1:4] == [
        "  Nothing to apply: train as you do now.",
        '  fit = autofit.load("a.yaml")',
        "  with fit.evaluation.prepare(model, eval_loader) as step:",
    ]


@pytest.mark.parametrize("width", [40, 60, 100])
def test_lines_fit_the_width(width: int) -> None:
    assert all(cells(line) <= width for line in summarize(training(), Canvas(width=width)).splitlines())
