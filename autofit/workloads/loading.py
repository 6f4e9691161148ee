"""The settings of a DataLoader with a number of worker processes, by the names of its arguments."""

from typing import Any

from autofit.core.loading import Loading


def loader_changes(loading: Loading | None) -> dict[str, Any]:
    """Returns the arguments of a DataLoader to replace; none if the loader keeps the user's settings."""
    if loading is None or loading.kept:
        return {}
    changes: dict[str, Any] = {
        "num_workers": loading.workers,
        "prefetch_factor": loading.prefetch_factor,
        "persistent_workers": loading.persistent_workers,
    }
    if loading.pin_memory is not None:
        changes["pin_memory"] = loading.pin_memory
    if not loading.workers:  # a DataLoader without workers refuses these
        changes |= {"timeout": 0, "multiprocessing_context": None}
    return changes
