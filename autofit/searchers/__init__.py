"""Ways to search. To add one: write its file, add its line here."""

from autofit.searchers.base import Searcher
from autofit.searchers.grid import Grid
from autofit.searchers.guided.guided import Guided
from autofit.searchers.sampled import Gp, Random, Tpe

MEMBERS: tuple[type[Searcher], ...] = (Guided, Tpe, Gp, Random, Grid)
"""Every searcher, the default first."""
