"""The pictures of a report as SVG text, drawn without a plotting library."""

from autofit.reports.svg.answers import ANSWERS
from autofit.reports.svg.breakdown import BREAKDOWN
from autofit.reports.svg.curves import CURVES
from autofit.reports.svg.estimates import ESTIMATES
from autofit.reports.svg.front import FRONT
from autofit.reports.svg.race import RACE
from autofit.reports.svg.timeline import TIMELINE
from autofit.reports.svg.why import WHY

CHARTS = (WHY, FRONT, CURVES, BREAKDOWN, TIMELINE, ANSWERS, RACE, ESTIMATES)
"""All charts, in the order of a report."""
