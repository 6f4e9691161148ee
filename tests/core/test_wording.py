"""A plan and an outcome in a few words."""

from autofit.core.measurement import Measurement, Memory
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.wording import a_type, describe_outcome, describe_plan

OWN = Plan(values={"micro_batch_size": 8, "accumulation_steps": 4, "precision": "fp32"})
MEMORY = Memory(allocated_bytes=2**20, judged_bytes=3 * 2**20, judged_by="test")


def measured(tokens: float | None = None) -> Outcome:
    """Returns an outcome of 10 samples a second."""
    measurement = Measurement(step_times_s=(0.8,), samples_per_step=8, memory=MEMORY, tokens_per_step=tokens)
    return Outcome(status=Status.MEASURED, measurement=measurement)


def test_a_plan_is_its_batch_and_what_it_changes() -> None:
    assert describe_plan(OWN, OWN) == "micro batch 8 x 4 accumulation steps = 32"
    best = OWN.replace(micro_batch_size=32, accumulation_steps=1, precision="bf16")
    assert describe_plan(best, OWN) == "micro batch 32, precision=bf16"


def test_a_measured_outcome_is_its_speed_and_peak() -> None:
    assert describe_outcome(measured()) == "10 samples/s, peak 3 MiB"
    assert describe_outcome(measured(), rate_per_s=12.5) == "12.5 samples/s, peak 3 MiB"


def test_tokens_are_shown_where_they_are_counted_and_known() -> None:
    assert describe_outcome(measured(tokens=800), "tokens") == "1,000 tokens/s, peak 3 MiB"
    assert describe_outcome(measured(), "tokens") == "10 samples/s, peak 3 MiB"


def test_an_outcome_without_a_measurement_is_its_reason() -> None:
    failed = Outcome(status=Status.OUT_OF_MEMORY, reason="tried to allocate 2 GiB")
    assert describe_outcome(failed) == f"{Status.OUT_OF_MEMORY.value}: tried to allocate 2 GiB"


def test_a_type_has_the_article_that_is_spoken() -> None:
    class UNet: ...

    values: list[object] = [3, [], OSError(), UNet()]
    assert [a_type(value) for value in values] == ["an int", "a list", "an OSError", "a UNet"]
