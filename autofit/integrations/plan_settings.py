"""What integrations share: a plan as arguments of another library's trainer, and the result of a search for one."""

import importlib
import warnings
from collections.abc import Container, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from autofit import planfile
from autofit.core.answer import Answer
from autofit.core.environment import TRAINER
from autofit.core.errors import UsageError
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.wording import a_type, install_command
from autofit.exporters.base import Export
from autofit.exporters.plan_facts import has_fixed_batches
from autofit.fit import Fit
from autofit.search.evidence import LEARNING_RATE_RULE
from autofit.workloads.sources import loader_changes

GivenPlan: TypeAlias = str | Path | Answer | Fit
"""A plan file, an answer, or what `autofit.tune` or `autofit.load` returned."""
BATCH = frozenset({MICRO_BATCH_SIZE, ACCUMULATION_STEPS})


def fit_of(plan: GivenPlan) -> Fit:
    """Returns the plan as `autofit.load` does.

    Raises:
        PlanFileError: the file is missing, damaged, or of another schema.
        UsageError: `plan` is something else.
    """
    if isinstance(plan, Fit):
        return plan
    if isinstance(plan, Answer):
        return Fit(plan)
    if isinstance(plan, str | Path):
        return Fit(planfile.load(plan), plan_file=str(plan))
    raise UsageError(
        f"found {a_type(plan)} as plan; expected the path of a plan file, or what autofit.tune or "
        "autofit.load returned. Pass one of these."
    )


def warn_of(plan: Plan, found: Export, done: Iterable[str] = ()) -> None:
    """Warns of how a trainer with the settings of an export differs from the plan, and of knobs that it does not have.

    The batch, and knobs that are `done` beside the settings, are not named.
    """
    for note in found.warnings:
        warnings.warn(f"{note}.", stacklevel=3)
    lines = [
        f"{knob}={plan.values[knob]}{f' (write: {line})' if line else ''}"
        for knob, line in {**found.by_hand, **dict.fromkeys(found.unmapped, "")}.items()
        if knob not in {*BATCH, *done}
    ]
    if lines:
        warnings.warn(
            f"the plan also has what these arguments cannot express: {'; '.join(lines)}. Its measured speed and "
            "memory depend on it.",
            stacklevel=3,
        )


def loader_arguments(plan: GivenPlan) -> dict[str, Any]:
    """Returns the plan's micro batch and loader workers, for `DataLoader(dataset, **loader_arguments(plan))`.

    The workers are those with which the loader kept up when it was measured; they are left out if the loader kept its
    settings. So is the batch if the plan has that of the user's own loader, such as one with a batch sampler that makes
    batches of different sizes: pass that sampler.

    Raises:
        PlanFileError: the file is not a plan file.
    """
    fit = fit_of(plan)
    batch = {} if has_fixed_batches(fit.answer) else {"batch_size": fit.plan.micro_batch_size}
    return {**batch, **{k: v for k, v in loader_changes(fit.proof.loading).items() if v is not None}}


def with_kept_batch(fit: Fit, origin: str, given: Container[str]) -> Fit:
    """Returns a fit with a caveat that its global batch was kept, unless the user gave an argument for it.

    `origin` is where it comes from, such as "of your loader".
    """
    if "global_batch_size" in given or "max_global_batch_size" in given:
        return fit
    size = fit.answer.global_batch(fit.plan)
    caveat = (
        f"the {size:,} samples of an optimizer step are those {origin}, and were kept. Give max_global_batch_size="
        f"{4 * size} to have larger batches searched too, which may be faster, and adjust the learning rate then "
        f"({LEARNING_RATE_RULE})"
    )
    answer = fit.answer.model_copy(update={"caveats": (*fit.answer.caveats, caveat)})
    return replace(fit, answer=answer)


def for_trainer(fit: Fit, library: str) -> Fit:
    """Returns a fit that shows how its plan is applied to the trainer of "transformers" or "lightning"."""
    environment = fit.answer.environment
    changed = environment.model_copy(update={"settings": {**environment.settings, TRAINER: library}})
    return replace(fit, answer=fit.answer.model_copy(update={"environment": changed}))


def import_package(name: str, package: str) -> Any:
    """Returns a module of an optional package, whose extra has the package's name.

    Raises:
        UsageError: the package is not installed, or cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UsageError(
            f"{name} cannot be imported ({error}); expected {package} to be installed. "
            f"Install it: {install_command(package)}"
        ) from error
