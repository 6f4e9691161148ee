"""What differs between two plan files, in a text and as JSON."""

from typing import Any

import pytest

from autofit.core.answer import Answer
from autofit.core.objective import Objective
from autofit.reports.canvas import Canvas
from autofit.reports.differences import differences, to_dict, to_text, verdict
from tests.recorded import recorded_search

FOUND = recorded_search(name="unet").answer
NAMES = ("a.yaml", "b.yaml")


def plan(rate_per_s: float | None = 200.0, **changes: Any) -> Answer:
    """Returns an answer with this throughput."""
    assert FOUND is not None
    return FOUND.model_copy(update={"rate_per_s": rate_per_s, **changes})


def changed() -> Answer:
    """Returns one with another batch, another torch and another setting."""
    r = plan(250.0)
    place = r.environment
    versions, settings = {**place.versions, "torch": "9.9"}, {**place.settings, "allocator": "expandable"}
    other = r.plan.replace(micro_batch_size=2 * r.plan.micro_batch_size)
    environment = place.model_copy(update={"versions": versions, "settings": settings})
    return r.model_copy(update={"plan": other, "environment": environment})


def test_results_are_always_there_and_other_values_where_they_differ() -> None:
    same = differences(plan(), plan())
    assert {each.part for each in same} == {"result"}
    assert all(each.before == each.after and not each.change for each in same)
    found = {each.name: each for each in differences(plan(), changed())}
    assert (found["samples/s"].before, found["samples/s"].after, found["samples/s"].change) == ("200", "250", "+25%")
    assert found["micro batch size"].part == "plan"
    assert (found["torch"].part, found["torch"].after) == ("environment", "9.9")
    assert (found["allocator"].before, found["allocator"].after) == ("–", "expandable")


def test_the_verdict_compares_throughputs_of_one_workload_on_one_device() -> None:
    same = "The plans are the same. The second ran at 1.00x of the first one's throughput, each in its own search."
    assert verdict(plan(), plan()) == same
    assert verdict(plan(), changed()).startswith("The plans differ. The second ran at 1.25x of")


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("workload", "Each plan is for another workload: their"),
        ("device_name", "Each plan is for another device: their"),
    ],
)
def test_what_cannot_be_compared_has_no_ratio(field: str, said: str) -> None:
    moved = plan(environment=plan().environment.model_copy(update={field: "other"}))
    assert verdict(plan(), moved).startswith(said)


def test_another_unit_or_an_unknown_throughput_has_no_ratio() -> None:
    tokens = plan(objective=Objective(unit="tokens"))
    assert verdict(plan(), tokens) == "One counts samples, the other tokens: no ratio can be given."
    shown = {each.name: each for each in differences(plan(), tokens)}["throughput"]
    assert (shown.before, shown.after) == ("200 samples/s", "200 tokens/s")
    assert (
        verdict(plan(), plan(rate_per_s=None)) == "The plans are the same; one of them has no throughput that is known."
    )


@pytest.mark.parametrize("width", [40, 100])
def test_the_text_fits_the_terminal_and_names_both_files(width: int) -> None:
    text = to_text(plan(), changed(), NAMES, Canvas(width))
    assert max(map(len, text.splitlines())) <= width
    for part in (*NAMES, "+25%", "micro batch size", "9.9", "What they bring", "Where they were measured"):
        assert part in text


def test_the_text_and_the_dictionary_say_the_same() -> None:
    text, found = to_text(plan(), changed(), NAMES, Canvas(1000)), to_dict(plan(), changed())
    assert found["verdict"] in text
    for each in found["differences"]:
        assert each["name"] in text
        assert each["after"] in text
    assert len(found["differences"]) == len(differences(plan(), changed()))
