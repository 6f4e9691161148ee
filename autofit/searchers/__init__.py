"""Ways to search. To add one: write its file, add its line here."""

from autofit.searchers.base import Searcher
from autofit.searchers.staged import Staged

MEMBERS: tuple[type[Searcher], ...] = (Staged,)
"""Every searcher, the default first."""
