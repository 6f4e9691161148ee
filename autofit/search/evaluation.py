"""Evaluation: the second search of a call, for the batch size and the plan of evaluation between epochs.

Evaluation has a limit of its own: it keeps no activations and no gradients, but runs while the training's weights and
optimizer state are on the device. It is therefore searched after the training, in inference mode on its own batches,
within the training's memory budget less the bytes that the training keeps beside the model.
"""

from collections.abc import Callable
from dataclasses import replace

from autofit.core.answer import Answer
from autofit.core.briefing import Options
from autofit.core.budget import Clock
from autofit.core.errors import BudgetSpent, Busy, NothingFits, UsageError, UserCodeError
from autofit.search.request import Request
from autofit.search.search import SearchInterrupted

TIME_SHARE = 0.2
"""Share of the time budget that is reserved for the search of evaluation. It also gets what the training's leaves. A
proof of the training that takes longer than expected may use this share: the training comes first."""
STAGE = "searching a plan for evaluation, on the batches of eval_loader"
"""Text of the stage in which evaluation is searched."""


def training_request(request: Request) -> Request:
    """Returns the request of the training's search, which leaves time for that of evaluation."""
    return request if request.time_s is None else replace(request, time_s=(1 - TIME_SHARE) * request.time_s)


def with_evaluation(
    training: Answer,
    options: Options,
    request: Request,
    clock: Clock,
    search: Callable[[Options, Request, Clock], Answer],
) -> Answer:
    """Returns the training's answer with that of evaluation, or with a caveat that says why there is none.

    The answer for the training is never lost: evaluation that does not fit, fails or has no time left is a caveat. The
    `options` are those of the training's search, `request` and `clock` those of the whole call; `search` gets its own.

    Raises:
        AutofitError: the device does not respond, the user's objects could not be restored, or autofit failed.
        SearchInterrupted: the user stopped it; the training's answer is kept.
    """
    kept_bytes = training.proof.memory.static_bytes or 0
    changes = {"memory_budget": training.budget.memory_bytes, "resident_bytes": kept_bytes, "cold": False}
    asked = options.model_copy(update={**changes, "pinned": {}})  # pins are for the training's plan alone
    title = f"evaluation of {request.title}" if request.title else "evaluation"
    try:
        left_s = None if request.time_s is None else max(request.time_s - clock.elapsed_s, 0.0)
        second = replace(request, time_s=left_s, planned_steps=None, title=title)
        return training.model_copy(update={"evaluation": search(asked, second, Clock(limit_s=left_s))})
    except KeyboardInterrupt:
        raise SearchInterrupted(training) from None
    except (NothingFits, UserCodeError, BudgetSpent, UsageError, Busy) as error:
        caveat = f"no plan for evaluation was found: {error}"
        return training.model_copy(update={"caveats": (*training.caveats, caveat)})
