"""The compile cache of one search: empty when the search begins, shared by its probes, race and proof, then deleted.

A plan's first probe is therefore charged what a first training pays, and its race and proof do not compile again.
Without a folder of its own, a search would find the code of an earlier training or search and take compiling for free.
Never loads torch.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""Environment variable that names the folder in which torch.compile keeps its code."""


def new_cache() -> TemporaryDirectory[str]:
    """Returns a new folder for the code of one search."""
    return TemporaryDirectory(prefix="autofit-compiled-", ignore_cleanup_errors=True)


@contextmanager
def private_cache() -> Iterator[None]:
    """Has torch.compile keep its code in a folder of its own in this process, until the context is left."""
    before = os.environ.get(VARIABLE)
    with new_cache() as folder:
        os.environ[VARIABLE] = folder
        _clear()
        try:
            yield
        finally:
            _clear()
            if before is None:
                os.environ.pop(VARIABLE, None)
            else:
                os.environ[VARIABLE] = before


def _clear() -> None:
    """Clears what torch.compile knows of the folder in this process. If it is not loaded, that is nothing."""
    compiler = sys.modules.get("torch._inductor.utils")
    if compiler is not None:
        compiler.clear_caches()
