"""The what-if page of an estimate: controls for the choice, the micro batch and the card, and the peak by kind."""

from typing import Any

from autofit.chips import cards
from autofit.core.units import format_bytes
from autofit.estimation.estimation import Estimation, PeakLaw, Row, devices_of
from autofit.memory.headroom import default_budget
from autofit.reports.frame import filled, page
from autofit.reports.markup import DataTable, Markup, shortened
from autofit.reports.sentences import moment

LENGTHS = (
    "Sequence lengths are those of the loader: memory grows faster than they do, so it is not carried over to others."
)


def render(estimation: Estimation) -> str:
    """Returns the page. It computes in the browser and loads nothing. Every text of the estimate is escaped."""
    name = shortened(estimation.target, 120) or "a model"
    fixed = [LENGTHS] if len(_lengths(estimation)) == 1 else []
    peaks = filled("parts.jinja", "data_table", _table(estimation), "Peak memory by micro batch")
    notes = filled("parts.jinja", "bullets", [*fixed, *estimation.caveats])
    return page(
        _answer(estimation),
        [("values", "Peaks", peaks), ("notes", "What to know", notes)],
        window=f"{name} – autofit estimate",
        kind="autofit estimate",
        title=name,
        about=[shortened(devices_of(estimation), 80), shortened(moment(estimation.created), 40)],
        footer="Made by autofit. Nothing was run: all peaks are estimated. This file needs no network.",
        styles=("what_if.css",),
        scripts=("what_if.js",),
    )


def _answer(estimation: Estimation) -> Markup:
    """Returns the controls and the places that the script fills."""
    names = list(dict.fromkeys(map(_name, estimation.laws)))
    counts = sorted({law.traded for law in estimation.laws})
    budgets, lengths = _budgets(estimation), _lengths(estimation)
    controls: list[tuple[str, str, Any]] = [
        ("choice", "Change", names),
        ("size", "Micro batch", max((law.sizes[-1] for law in estimation.laws), default=1)),
        ("length", "Sequence length", len(lengths) - 1),
        ("count", estimation.traded.counted.capitalize(), counts[-1] if len(counts) > 1 else 0),
        ("card", "Device", list(budgets)),
    ]
    laws = [
        {
            "choice": names.index(_name(law)),
            "count": law.traded,
            "length": lengths.index(law.length or estimation.sequence_length),
            "sizes": law.sizes,
            "parts": law.parts,
        }
        for law in estimation.laws
    ]
    # Choices and lengths are places in the lists of their controls.
    data = {
        "laws": laws,
        "lengths": lengths,
        "length": lengths.index(estimation.sequence_length),
        "counts": counts,
        "budgets": list(budgets.values()),
        "size": estimation.own.plan.micro_batch_size,
    }
    return filled("what_if.jinja", "answer", [control for control in controls if control[2]], data)


def _lengths(estimation: Estimation) -> list[int | None]:
    """Returns the sequence lengths at which plans were traced, ascending; only None if the batches have none."""
    others = {law.length for law in estimation.laws if law.length is not None}
    loaders = estimation.sequence_length
    return [None] if loaders is None else [*sorted({loaders, *others})]


def _budgets(estimation: Estimation) -> dict[str, int]:
    """Returns the budget of the estimate, and that of each known device less the usual headroom, by name."""
    budget, place = estimation.budget.memory_bytes, shortened(estimation.environment.device_name, 60)
    found = {f"{place}: {format_bytes(budget)} (this estimate)": budget}
    for card in sorted(cards(), key=lambda card: card.capacity_bytes):
        usual = default_budget(card.capacity_bytes, varies=False).memory_bytes
        found[f"{card.aliases[0]}: {format_bytes(usual)}"] = usual
    return found


def _name(law: PeakLaw) -> str:
    return shortened(Row(knob=law.knob, value=law.value).name, 80) or "as it is"


def _table(estimation: Estimation) -> DataTable:
    """Returns the peak of every law at every size."""
    sizes = sorted({size for law in estimation.laws for size in law.sizes})
    rows = []
    for law in estimation.laws:
        peaks = dict(zip(law.sizes, map(sum, zip(*law.parts.values(), strict=True)), strict=True))
        name = _name(law) + (f", {law.traded} {estimation.traded.counted}" if law.traded else "")
        name += f", length {law.length}" if law.length is not None else ""
        rows.append((name, *(format_bytes(peaks[size]) if size in peaks else "–" for size in sizes)))
    return DataTable(("micro batch", *map(str, sizes)), tuple(rows))
