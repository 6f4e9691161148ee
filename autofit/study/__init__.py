"""The durable record of trials: Optuna's studies in a journal file, or in any storage that Optuna has a URL for.

Optuna, and what needs it, is loaded when it is first asked for, in a thread of its own: Optuna keeps the errors of
optional imports that failed, and with them the frames of all callers, which may hold a model.
"""

from importlib import import_module
from threading import Thread
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import optuna as optuna

    from autofit.study.storages import connect, disconnect, existing, quiet, studies_in, study_in
    from autofit.study.study import Study, read_studies

__all__ = ["Study", "connect", "disconnect", "existing", "optuna", "quiet", "read_studies", "studies_in", "study_in"]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'autofit.study' has no attribute {name!r}")
    loading = Thread(target=import_module, args=("autofit.study.study",))
    loading.start()
    loading.join()
    globals()[name] = value = getattr(import_module("autofit.study.study"), name)  # it has all of these names
    return value
