"""The tree of errors is drawn as it is, with the exit codes that the command line has."""

import re

from autofit.core import errors
from autofit.core.errors import AutofitError, Untraceable


def test_the_drawing_shows_every_error_with_its_parent_and_exit_code() -> None:
    drawn = re.findall(r"^([│├└─ ]*)(\w+) +(\d+) {3}\S", errors.__doc__ or "", re.MULTILINE)
    parents: list[str] = []
    found = {}
    for indent, name, code in drawn:
        depth = len(indent) // 4
        parents = [*parents[:depth], name]
        found[name] = (parents[depth - 1] if depth else "Exception", int(code))
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, AutofitError)]
    assert found == {kind.__name__: (kind.__bases__[0].__name__, kind.exit_code) for kind in kinds}


def test_a_workload_that_cannot_be_traced_says_what_stopped_it_and_where() -> None:
    error = Untraceable("aten.nonzero has no fixed size", "model.py:3", "Probes find its memory.")
    assert (error.reason, error.where) == ("aten.nonzero has no fixed size", "model.py:3")
    assert str(error).endswith("aten.nonzero has no fixed size (model.py:3). Probes find its memory.")
