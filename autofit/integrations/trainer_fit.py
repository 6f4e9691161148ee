"""Trainer fit: the result of a search for a trainer says which one, and that its global batch was kept."""

from collections.abc import Container
from dataclasses import replace

from autofit.core.environment import TRAINER
from autofit.fit import Fit
from autofit.search.evidence import LEARNING_RATE_RULE


def with_kept_batch(fit: Fit, origin: str, given: Container[str]) -> Fit:
    """Returns a fit with a caveat that its global batch was kept, unless the user gave an argument for it.

    `origin` is where it comes from, such as "of your loader".
    """
    if "global_batch_size" in given or "max_global_batch_size" in given:
        return fit
    size = fit.plan.global_batch_size
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
