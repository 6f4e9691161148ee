"""Kept batch: an integration keeps the global batch of the user's trainer, and the result says so."""

from dataclasses import replace

from autofit.fit import Fit


def with_kept_batch(fit: Fit, origin: str) -> Fit:
    """Returns a fit with a caveat that its global batch was kept.

    Args:
        fit: the result of a search in which the user gave no global batch.
        origin: where the global batch comes from, such as "of your loader".
    """
    size = fit.plan.global_batch_size
    caveat = (
        f"the {size:,} samples of an optimizer step are those {origin}, and were kept. Give max_global_batch_size="
        f"{4 * size} to have larger batches searched too, which may be faster, and adjust the learning rate then "
        "(common rules scale it with the batch, or with its square root)"
    )
    recommendation = fit.recommendation.model_copy(update={"caveats": (*fit.recommendation.caveats, caveat)})
    return replace(fit, recommendation=recommendation)
