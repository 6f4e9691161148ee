"""The chart of a job: throughput with its noise band, and peak memory with its limits, over the same nights."""

from autofit.core.units import format_bytes, short_number
from autofit.nightly.outputs.facts import moment
from autofit.nightly.outputs.trend import memory_panel, throughput_panel
from autofit.nightly.outputs.trend.jobs import Trend
from autofit.nightly.outputs.trend.panel import STRIP, Panel, dates, segments
from autofit.nightly.outputs.trend.time_scale import time_scale
from autofit.reports.markup import number, shortened
from autofit.reports.svg.axes import AxisScale, margin
from autofit.reports.svg.drawing import Box, Drawing, Format

_RATES, _MEMORY, _BETWEEN = 180.0, 84.0, 40.0
"""Heights of the two panels, and of the room between them."""


def available(trend: Trend) -> bool:
    """Returns whether a plan of the job ever ran, so that there is something to draw."""
    return any(entry.rate_per_s is not None for entry in trend.entries)


def draw(trend: Trend, form: Format) -> Drawing:
    """Returns the chart of a job whose plan ran at least once."""
    drawing, entries = Drawing(form, about(trend)), trend.entries
    (rates, rate_ticks), (peaks, peak_ticks) = throughput_panel.axis(entries), memory_panel.axis(trend)
    lane = throughput_panel.LANE if any(entry.rate_per_s is None for entry in entries) else 0.0
    top = 20 + (STRIP if any(entry.changes for entry in entries) else 4)
    upper = Box(max(margin(rate_ticks), margin(peak_ticks)), top, form.width - 10, top + _RATES)
    below = upper.bottom + lane + _BETWEEN
    lower = Box(upper.left, below, upper.right, below + _MEMORY)
    x = time_scale(entries, upper.left, upper.right)
    throughput = Panel(upper, x, AxisScale(*rates, upper.bottom - 4, upper.top + 8))
    memory = Panel(lower, x, AxisScale(*peaks, lower.bottom, lower.top))
    if x.turns:
        drawing.rect(upper.left, upper.top, x.middle, lower.bottom, "af-band")
    drawing.text(0, 12, f"{shortened(trend.last.unit, 20)}/s", "af-strong")
    throughput.grid(drawing, rate_ticks)
    memory.grid(drawing, peak_ticks)
    segments(drawing, entries, throughput, lower.bottom)
    dates(drawing, x, lower.bottom)
    throughput_panel.draw(drawing, entries, throughput, lane)
    memory_panel.draw(drawing, trend, memory)
    drawing.add("path", class_="tr-rule", d=f"M0 {number(top)}V{number(lower.bottom)}")
    throughput_panel.nights(drawing, entries, throughput, lane)
    drawing.height = lower.bottom + 26
    return drawing


def about(trend: Trend) -> str:
    """Returns what the chart shows, for a screen reader."""
    count, last = len(trend.records), trend.last
    over = f"{count:,} nights since {shortened(moment(trend.records[0].night), 40)}" if count > 1 else "one night"
    texts = [f"Throughput and peak memory of {shortened(trend.name, 80)} over {over}."]
    texts.append(f"Newest night, {shortened(moment(last.night), 40)}: {last.verdict.kind.value}.")
    if last.accepted is not None:
        rate = f"{short_number(last.accepted.rate_per_s)} {shortened(last.unit, 20)}/s"
        texts.append(f"{rate}, peak {format_bytes(last.accepted.peak_bytes)}.")
    return " ".join(texts)
