"""The position of a loader, which can be watched but not restored."""

from collections.abc import Iterator
from typing import Any

from autofit.guard.object_state import ValuePiece


def loader_pieces(loader: Any) -> Iterator[ValuePiece]:
    """Yields the pieces that watch a loader's position.

    A loader's `load_state_dict` discards its running iterator, so it cannot restore one. Without a running iterator,
    some loaders start one in `state_dict`, which draws from the random generators.
    """
    if hasattr(loader, "_num_yielded"):
        yield progress_piece("loader", loader)
    if hasattr(loader, "state_dict"):
        yield ValuePiece(
            "loader.state_dict()",
            lambda: None if getattr(loader, "_iterator", loader) is None else loader.state_dict(),
            None,
        )


def progress_piece(name: str, iterator: Any) -> ValuePiece:
    """Returns the piece that watches the position of a loader's running iterator, which cannot be rewound."""
    return ValuePiece(name, lambda: getattr(iterator, "_num_yielded", None), None)
