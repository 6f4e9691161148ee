"""The what-if page of an estimate: controls for the choice, the micro batch and the card, and the peak by kind."""

import json
from functools import cache
from importlib.resources import files

from autofit.chips import cards
from autofit.core.units import format_bytes
from autofit.estimation.records import EstimationRecord, Row
from autofit.estimation.what_if import PeakLaw
from autofit.memory.headroom import default_budget
from autofit.reports.frame import Frame, page, script, style
from autofit.reports.markup import LABEL, DataTable, Markup, bullets, data_table, element, joined, section, shortened
from autofit.reports.sentences import moment

LENGTHS = (
    "Sequence lengths are those of the loader: memory grows faster than they do, so it is not carried over to others."
)


def render(estimation: EstimationRecord) -> str:
    """Returns the page. It computes in the browser and loads nothing. Every text of the estimate is escaped."""
    name = shortened(estimation.target, 120) or "a model"
    fixed = [LENGTHS] if len(_lengths(estimation)) == 1 else []
    notes = [shortened(text, 2 * LABEL) for text in (*fixed, *estimation.caveats)]
    sections = [
        ("values", "Peaks", section("values", "Peaks", data_table(_table(estimation), "Peak memory by micro batch"))),
        ("notes", "What to know", section("notes", "What to know", bullets(notes))),
    ]
    frame = Frame(
        window=f"{name} – autofit estimate",
        kind="autofit estimate",
        title=name,
        about=[shortened(estimation.environment.device_name, 80), shortened(moment(estimation.created), 40)],
        footer="Made by autofit. Nothing was run: all peaks are estimated. This file needs no network.",
        style=style(_text("what_if.css")),
        script=script(_text("what_if.js")),
    )
    return page(frame, ("answer", "What fits", _answer(estimation)), sections)


def _answer(estimation: EstimationRecord) -> Markup:
    """Returns the controls and the places that the script fills."""
    names = list(dict.fromkeys(map(_name, estimation.laws)))
    counts = sorted({law.traded for law in estimation.laws})
    budgets = _budgets(estimation)
    largest = max((law.sizes[-1] for law in estimation.laws), default=1)
    lengths = _lengths(estimation)
    controls = [
        _select("choice", "Change", names),
        _range("size", "Micro batch", largest),
        *([_range("length", "Sequence length", len(lengths) - 1)] if len(lengths) > 1 else []),
        *([_range("count", estimation.traded.counted.capitalize(), counts[-1])] if len(counts) > 1 else []),
        _select("card", "Device", [name for name, _ in budgets]),
    ]
    return element(
        "section",
        element("p", "", class_="headline", id="what-if", role="status"),
        element("form", joined(controls), class_="controls", id="controls", hidden=True),
        element("div", id="stack", role="img", aria_label="The peak by kind of tensor, as a share of the budget"),
        element("dl", class_="facts", id="parts"),
        element(
            "noscript", element("p", "The controls need a script. The peaks are in the table below.", class_="aid")
        ),
        element(
            "script",
            Markup(json.dumps(_data(estimation, names, counts, budgets)).replace("<", "\\u003c")),
            id="laws",
            type="application/json",
        ),
        id="answer",
        aria_label="What fits",
    )


def _data(
    estimation: EstimationRecord, names: list[str], counts: list[int], budgets: list[tuple[str, int]]
) -> dict[str, object]:
    """Returns what the script computes with. Choices and lengths are places in the lists of their controls."""
    lengths = _lengths(estimation)
    return {
        "laws": [
            {
                "choice": names.index(_name(law)),
                "count": law.traded,
                "length": lengths.index(law.length or estimation.sequence_length),
                "sizes": law.sizes,
                "parts": law.parts,
            }
            for law in estimation.laws
        ],
        "lengths": lengths,
        "length": lengths.index(estimation.sequence_length),
        "counts": counts,
        "budgets": [budget for _, budget in budgets],
        "size": estimation.own.plan.micro_batch_size,
    }


def _lengths(estimation: EstimationRecord) -> list[int | None]:
    """Returns the sequence lengths at which plans were traced, ascending; only None if the batches have none."""
    others = {law.length for law in estimation.laws if law.length is not None}
    loaders = estimation.sequence_length
    return [None] if loaders is None else [*sorted({loaders, *others})]


def _budgets(estimation: EstimationRecord) -> list[tuple[str, int]]:
    """Returns the budget of the estimate, and that of each known device less the usual headroom."""
    budget, place = estimation.budget.memory_bytes, shortened(estimation.environment.device_name, 60)
    found = [(f"{place}: {format_bytes(budget)} (this estimate)", budget)]
    for card in sorted(cards(), key=lambda card: card.capacity_bytes):
        usual = default_budget(card.capacity_bytes, varies=False).memory_bytes
        found.append((f"{card.aliases[0]}: {format_bytes(usual)}", usual))
    return found


def _name(law: PeakLaw) -> str:
    return shortened(Row(knob=law.knob, value=law.value).name, 80) or "as it is"


def _select(name: str, label: str, options: list[str]) -> Markup:
    inside = joined(element("option", text, value=place) for place, text in enumerate(options))
    return element("label", label, element("select", inside, id=name))


def _range(name: str, label: str, most: int) -> Markup:
    inside = element("input", id=name, type="range", min=1 if name == "size" else 0, max=most, value=0, step=1)
    return element("label", label, " ", element("output", id=f"{name}-value"), inside)


def _table(estimation: EstimationRecord) -> DataTable:
    """Returns the peak of every law at every size."""
    sizes = sorted({size for law in estimation.laws for size in law.sizes})
    counted = estimation.traded.counted
    rows = []
    for law in estimation.laws:
        peaks = {
            size: sum(values) for size, values in zip(law.sizes, zip(*law.parts.values(), strict=True), strict=True)
        }
        name = _name(law) + (f", {law.traded} {counted}" if law.traded else "")
        name += f", length {law.length}" if law.length is not None else ""
        rows.append((name, *(format_bytes(peaks[size]) if size in peaks else "–" for size in sizes)))
    return DataTable(("micro batch", *map(str, sizes)), tuple(rows))


@cache
def _text(name: str) -> str:
    return files("autofit.estimation").joinpath(name).read_text(encoding="utf-8")
