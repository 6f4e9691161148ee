"""Searchers. To add one, write its file and add its line here; in another package, add an entry point."""

from functools import cache

from autofit.plugins import plugins
from autofit.searchers.base import Searcher
from autofit.searchers.guided.guided import Guided
from autofit.searchers.sampled import Gp, Grid, Random, Tpe

BUILT_IN: tuple[type[Searcher], ...] = (Guided, Tpe, Gp, Random, Grid)
"""The searchers of autofit itself, the default first."""


@cache
def members() -> tuple[type[Searcher], ...]:
    """Returns every searcher, the default first.

    Those of other packages are loaded at the first call.
    """
    return (*BUILT_IN, *plugins("searchers", Searcher, BUILT_IN, "name"))
