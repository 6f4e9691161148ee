"""Hugging Face: tune what a `Trainer` trains, train it under the plan, and check what the plan promised.

fit = tune_trainer(make_trainer, time_budget="5min")
args = apply(fit, args)
trainer = Trainer(model=model, args=args, callbacks=[PlanCheck(fit)], ...)
"""

from autofit.integrations.huggingface.arguments import PlanCheck, apply
from autofit.integrations.huggingface.tuning import tune_trainer

__all__ = ["PlanCheck", "apply", "tune_trainer"]
