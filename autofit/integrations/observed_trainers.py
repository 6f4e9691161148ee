"""Tunes where the trainer of another library starts, in a script that does not know autofit.

A class is changed when its module is imported, so that a script that does not use a library does not wait for it.
"""

import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any, Self

from autofit.core.errors import UsageError
from autofit.fit import Fit

OnTuned = Callable[[Callable[[], Fit], Callable[[Fit], None]], None]
"""Tunes by its first function, applies what was found by the second, and reports both or why not."""


@dataclass(slots=True)
class TunedTrainers(MetaPathFinder):
    """Tunes where a `transformers.Trainer` or a `lightning.pytorch.Trainer` starts to train, while it is entered.

    Args:
        begin: is called where a training starts. Returns None if it is not to be tuned.
        arguments: those of `autofit.tune` that the user gave.
    """

    begin: Callable[[], OnTuned | None]
    arguments: Mapping[str, Any]
    _undo: ExitStack = field(default_factory=ExitStack)
    _awaited: set[str] = field(default_factory=set)

    def __enter__(self) -> Self:
        self._awaited.update(set(_TRAINERS) - set(sys.modules))
        for name in set(_TRAINERS) & set(sys.modules):
            self._change(name)
        sys.meta_path.insert(0, self)
        self._undo.callback(sys.meta_path.remove, self)
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def find_spec(self, fullname: str, path: object, target: object = None) -> ModuleSpec | None:
        """Finds an awaited module as Python does, and changes its Trainer when it has been imported."""
        if fullname not in self._awaited:
            return None
        self._awaited.remove(fullname)
        spec = find_spec(fullname)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def executed(module: ModuleType) -> None:
                execute(module)
                self._change(fullname)

            spec.loader.exec_module = executed  # type: ignore[method-assign]
        return spec

    def _change(self, name: str) -> None:
        """Has the method that trains be preceded by tuning."""
        trainer_class, (method, before) = sys.modules[name].Trainer, _TRAINERS[name]
        train = getattr(trainer_class, method)

        def tuned(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            if (answer := self.begin()) is not None:
                before(trainer, answer, self.arguments)
            return train(trainer, *args, **kwargs)

        setattr(trainer_class, method, tuned)
        self._undo.callback(setattr, trainer_class, method, train)


def _of_transformers(trainer: Any, answer: OnTuned, arguments: Mapping[str, Any]) -> None:
    from autofit.integrations.huggingface import apply, tune_trainer  # noqa: PLC0415  # the script has imported it

    def applied(fit: Fit) -> None:
        if type(trainer).get_train_dataloader is not sys.modules["transformers.trainer"].Trainer.get_train_dataloader:
            raise UsageError(
                f"found {type(trainer).__name__}.get_train_dataloader, whose batch may not be that of the arguments; "
                "expected that of Trainer. Give the batch of the plan to its loader."
            )
        trainer.args = apply(fit, trainer.args, None if trainer.model_init else trainer.model)
        trainer._train_batch_size = trainer.args.train_batch_size
        trainer.create_accelerator_and_postprocess()

    kept = ("optimizer_implementation",) if trainer.optimizer is not None else ()
    without = (*arguments.get("without", ()), *kept)
    answer(lambda: tune_trainer(lambda: trainer, **{**arguments, "without": without}), applied)


def _of_lightning(trainer: Any, answer: OnTuned, arguments: Mapping[str, Any]) -> None:
    from autofit.integrations import lightning  # noqa: PLC0415  # the script has imported it

    if any(type(each).__module__ == lightning.__name__ for each in trainer.callbacks):
        answer(_refuse_callback, lambda fit: None)
    else:
        trainer.callbacks.append(_tuning(lightning.AutofitCallback, answer, arguments))


def _refuse_callback() -> Fit:
    raise UsageError(
        "found a callback of autofit among those of the Trainer, which tunes this training or applies a plan to it; "
        "expected none. Leave it out, or run the script with python."
    )


def _tuning(callback: type[Any], answer: OnTuned, arguments: Mapping[str, Any]) -> Any:
    """Returns a callback of Lightning that tunes when `fit` starts."""

    class TuneOnFitStart(callback):  # type: ignore[misc]  # Lightning is imported by then
        """Tunes when `fit` starts; a training that cannot be tuned is left as it is."""

        refused: UsageError | None = None

        def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
            try:
                super().setup(trainer, pl_module, stage)
            except UsageError as error:
                self.refused = error

        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
            answer(lambda: self.found(trainer, pl_module), lambda fit: None)

        def found(self, trainer: Any, module: Any) -> Fit:
            if self.refused is not None:
                raise self.refused
            try:
                super().on_fit_start(trainer, module)
            except UsageError:
                self.fit = None  # it is not in effect
                raise
            if self.fit is None:
                raise UsageError("found fast_dev_run; expected a training. Leave it out.")
            return self.fit

    return TuneOnFitStart(**arguments)


_TRAINERS = {
    "transformers.trainer": ("train", _of_transformers),
    "lightning.pytorch.trainer.trainer": ("fit", _of_lightning),
}
"""For each module with a class `Trainer`: its method that trains, and what comes before."""
