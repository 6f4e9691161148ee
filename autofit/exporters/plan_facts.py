"""What several exporters ask of a plan: facts that no single value of a knob says."""

import math

from autofit.core.block_order import read_order
from autofit.core.loading import Loading
from autofit.core.plan import Plan
from autofit.core.recommendation import Recommendation

CHECKPOINTED_BLOCKS, CHECKPOINT_ORDER = "checkpointed_blocks", "checkpoint_order"


def checkpoints_every_block(plan: Plan) -> bool:
    """Returns whether the plan checkpoints all blocks of the model, as the switches of most trainers do."""
    order, blocks = read_order(plan.values.get(CHECKPOINT_ORDER)), plan.values.get(CHECKPOINTED_BLOCKS)
    return bool(order) and type(blocks) is int and order is not None and blocks == len(order)


def chosen_loading(recommendation: Recommendation) -> Loading | None:
    """Returns how the loader is to be built, if its workers were chosen by measurement and differ from the user's."""
    loading = recommendation.proof.loading
    return None if loading is None or loading.kept or not loading.workers else loading


def max_grad_norm(recommendation: Recommendation) -> float | None:
    """Returns the norm to which the measured training clips its gradients; None if it does not."""
    try:
        norm = float(recommendation.environment.settings.get("max_grad_norm", ""))
    except ValueError:
        return None
    return norm if norm > 0 and math.isfinite(norm) else None
