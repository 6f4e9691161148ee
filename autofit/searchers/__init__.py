"""Ways to search. To add one: write its file, add its line here; or, in another package, an entry point."""

from functools import cache

from autofit.plugins import plugins
from autofit.searchers.base import Searcher
from autofit.searchers.grid import Grid
from autofit.searchers.guided.guided import Guided
from autofit.searchers.sampled import Gp, Random, Tpe

OWN: tuple[type[Searcher], ...] = (Guided, Tpe, Gp, Random, Grid)
"""Those of autofit itself."""


@cache
def members() -> tuple[type[Searcher], ...]:
    """Returns every searcher, the default first.

    Those of other packages are loaded at the first call.
    """
    return (*OWN, *plugins("searchers", Searcher, OWN, "name"))
