"""The durable record of trials: Optuna's studies in a journal file, or in any storage that Optuna has a URL for.

Optuna, and what needs it, is loaded when it is first asked for, in a thread of its own: Optuna keeps the errors of
optional imports that failed, and with them the frames of all callers, which may hold a model.
"""

from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import optuna as optuna

    from autofit.study.storages import check_schema, connect, disconnect, existing, quiet, studies_in, study_in
    from autofit.study.study import Study, read_studies

__all__ = [
    "Study", "check_schema", "connect", "disconnect", "existing", "optuna", "quiet", "read_studies", "studies_in",
    "study_in",
]  # fmt: skip


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'autofit.study' has no attribute {name!r}")
    module = "autofit.study.study" if name in ("Study", "read_studies") else "autofit.study.storages"
    loading = Thread(target=import_module, args=(module,))
    loading.start()
    loading.join()
    globals()[name] = value = getattr(import_module(module), name)
    return value
