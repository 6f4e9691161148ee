"""The card that a notebook shows for a Fit."""

import re
from xml.dom.minidom import parseString

from autofit.core.outcome import Outcome, Status
from autofit.core.recommendation import Candidate, Ratio
from autofit.reports.html.card import card
from tests.reports.test_summary import BEST, OWN, measured, record


def test_the_answer_is_first_and_the_baseline_beside_it() -> None:
    found = card(record(gain=Ratio(value=2.5, low=2.4, high=2.6, pairs=8)))
    parseString(found.encode())
    assert found.index("Recommended: ") < found.index("2.50x (2.40 to 2.60) of the baseline") < found.index("<table>")
    assert found.index('<th scope="row">recommended</th>') < found.index('<th scope="row">baseline</th>')
    recommended, baseline = (row for row in found.split("<tr>") if 'scope="row"' in row)
    assert "<td>2.50x</td>" in recommended
    assert "<td></td>" in baseline


def test_a_card_has_no_style_script_or_address() -> None:
    found = card(record())
    assert not [text for text in ("<style", "style=", "<script", "href", "src=", "class=") if text in found]


def test_a_baseline_that_is_the_answer_is_shown_once() -> None:
    found = card(record(plan=OWN, gain=None))
    assert "Keep the baseline: " in found
    assert '<th scope="row">baseline</th>' not in found


def test_a_baseline_that_does_not_run_says_why() -> None:
    failed = Outcome(status=Status.OUT_OF_MEMORY, reason="needs more")
    found = card(record(baseline=Candidate(plan=OWN, outcome=failed), gain=None))
    assert "the baseline does not run here" in found
    assert "<td>out of memory</td><td>–</td>" in found


def test_a_baseline_that_was_skipped_was_not_run() -> None:
    skipped = Outcome(status=Status.SKIPPED, reason="needs at least 2 GiB, above the budget of 1 GiB (measured)")
    found = card(record(baseline=Candidate(plan=OWN, outcome=skipped), gain=None))
    assert ": the baseline was not run: needs at least 2 GiB, above the budget of 1 GiB." in found
    assert "<td>not run</td><td>–</td>" in found


def test_an_unknown_gain_is_not_a_baseline_that_does_not_run() -> None:
    assert "its gain over the baseline is unknown" in card(record(gain=None))


def test_few_alternatives_are_shown() -> None:
    others = tuple(Candidate(plan=BEST.replace(micro_batch_size=size), outcome=measured()) for size in range(1, 9))
    assert card(record(alternatives=others)).count('<th scope="row">alternative</th>') == 3


def test_hostile_texts_are_shown_as_text() -> None:
    found = card(record(caveats=("</script><script>alert(1)</script>" + "A" * 10_000,)))
    assert "<script>" not in found
    assert len(found) < 5000


def test_a_number_and_its_unit_stay_on_one_line() -> None:
    found = card(record())
    peaks = re.findall(r"<td>([^<]*)</td></tr>", found)
    assert len(peaks) == 2
    assert all(re.fullmatch("[0-9.]+\u00a0[KMGT]?i?B", peak) for peak in peaks)
    assert re.search("Memory budget: [0-9.]+\u00a0GiB", found)
