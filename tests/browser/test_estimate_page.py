"""The what-if page in a real browser: its controls compute what the traces of a known model say."""

from pathlib import Path
from typing import Any

import pytest

from autofit.core.plan import Plan
from autofit.core.units import format_bytes
from autofit.estimation.estimate import estimate
from autofit.estimation.page import render
from tests.browser.browsing import Browser
from tests.browser.page_checks import WIDTHS, check_accessible, check_layout, check_loads_alone, visible
from tests.estimation.traces import MIB, briefing, peak_of, trace_of

pytestmark = pytest.mark.slow

BUDGET = 1000 * MIB
LENGTH = 32
GIVEN = briefing(BUDGET).model_copy(update={"sequence_length": LENGTH})


def as_samples(plan: Plan, length: int) -> Plan:
    """Returns the plan at the loader's length whose tokens are as many: activations here follow the tokens."""
    return plan.replace(micro_batch_size=plan.micro_batch_size * length // LENGTH)


FOUND = estimate(
    GIVEN,
    trace_of,
    "train.py:make",
    with_laws=True,
    at_length=lambda length: lambda plan: trace_of(as_samples(plan, length)),
)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("estimate") / "estimate.html"
    made.write_text(render(FOUND), encoding="utf-8")
    return made


def choose(page: Browser, **values: Any) -> str:
    """Sets controls, and returns the verdict."""
    for name, value in values.items():
        page.run(f"const node = document.querySelector('#{name}'); node.value = arguments[0];"
                 "node.dispatchEvent(new Event('input', {bubbles: true}))", value)  # fmt: skip
    return str(page.run("return document.querySelector('#what-if').textContent"))


def test_it_loads_alone_and_begins_with_the_users_batch(browser: Browser, path: Path) -> None:
    check_loads_alone(browser, path)
    own = FOUND.own.plan
    assert choose(browser).startswith(f"About {peak_of(own) // MIB} MiB fits into 1000 MiB.")


def test_the_controls_change_the_peak_the_verdict_and_the_largest_that_fits(browser: Browser, path: Path) -> None:
    browser.open(path)
    own = FOUND.own.plan
    _, middle, last = FOUND.laws[0].sizes
    for choice, precision, count, size in (
        (0, "fp32", 0, middle), (0, "fp32", 4, last), (0, "fp32", 2, last), (0, "fp32", 0, middle + 9),
        (1, "bf16", 0, last), (1, "bf16", 4, last),
    ):  # fmt: skip
        plan = own.replace(precision=precision, checkpointed_blocks=count, micro_batch_size=size)
        peak = format_bytes(peak_of(plan))
        fits = "fits" if peak_of(plan) <= BUDGET else "does not fit"
        verdict = choose(browser, choice=choice, count=count, size=size)
        assert verdict.startswith(f"About {peak} {fits} into 1000 MiB."), (plan, verdict)
    fitting = [n for n in range(1, last) if peak_of(own.replace(micro_batch_size=n)) <= BUDGET]
    assert choose(browser, choice=0, count=0).endswith(f"The largest that fits is {fitting[-1]}.")


def test_the_slider_of_lengths_stops_where_plans_were_traced(browser: Browser, path: Path) -> None:
    browser.open(path)
    last, own = FOUND.laws[0].sizes[-1], FOUND.own.plan
    for place, length in enumerate((LENGTH // 2, LENGTH, 2 * LENGTH)):
        peak = peak_of(as_samples(own.replace(micro_batch_size=last), length))
        fits = "fits" if peak <= BUDGET else "does not fit"
        verdict = choose(browser, choice=0, count=0, size=last, length=place)
        assert verdict.startswith(f"About {format_bytes(peak)} {fits} into 1000 MiB."), (length, verdict)
        assert browser.run("return document.querySelector('#length-value').textContent") == str(length)


def test_another_device_has_another_budget_and_the_parts_sum_to_the_peak(browser: Browser, path: Path) -> None:
    browser.open(path)
    cards = browser.run("return document.querySelector('#card').length")
    assert " fits into 1000 MiB." not in choose(browser, card=cards - 1)
    shown = browser.run("return [...document.querySelectorAll('#parts dd')].map(node => parseFloat(node.textContent))")
    assert sum(shown) == pytest.approx(peak_of(FOUND.own.plan) / MIB, rel=0.01)


def test_without_a_script_the_peaks_are_in_the_table(browser: Browser, path: Path, tmp_path: Path) -> None:
    text = path.read_text(encoding="utf-8").replace("content=", "data-content=")
    plain = tmp_path / "plain.html"
    start = text.rindex("<script>")
    plain.write_text(text[:start] + text[text.index("</script>", start) + 9 :], encoding="utf-8")
    browser.open(plain)
    assert visible(browser, ["#controls", "#values table"]) == [False, True]


@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_off(browser: Browser, path: Path, tmp_path: Path, width: int) -> None:
    check_layout(browser, path, tmp_path / "page.png", width, "light")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_axe_finds_no_violation(browser: Browser, path: Path, axe: str, theme: str) -> None:
    browser.open(path, theme=theme)
    check_accessible(browser, axe)
