"""Searches on the workers of Ray Train, each of which is a rank, and then trains under the plan.

python ray_train.py
"""

from typing import Any

from ray.train import ScalingConfig, get_context
from ray.train.torch import TorchTrainer, get_device
from train import make_model_and_loader  # type: ignore[import-not-found]  # your own code

import autofit


def train_on_worker(config: dict[str, Any]) -> None:
    """Runs on each worker. Ray has made the process group."""
    model, loader = make_model_and_loader()
    model = model.to(get_device())
    fit = autofit.tune(model, loader, time_budget="15min")
    if get_context().get_world_rank() == 0:
        fit.save(config["plan"])
    step = fit.prepare(model, loader)
    for batch in step.loader:
        step(batch)
    step.close()


if __name__ == "__main__":
    workers = ScalingConfig(num_workers=16, use_gpu=True)
    TorchTrainer(train_on_worker, train_loop_config={"plan": "/shared/autofit.yaml"}, scaling_config=workers).fit()
