"""SearchOffer: what a tuner asks the workers of its database to run."""

from typing import Any

from pydantic import BaseModel, ConfigDict

from autofit.core.briefing import Options
from autofit.core.environment import Environment
from autofit.core.objective import Objective


class SearchOffer(BaseModel):
    """What a tuner asks the workers of its database to run.

    Attributes:
        study: name of the Optuna study that has the plans.
        target: `file.py:function` or `module:function`, relative to the directory of the worker.
        arguments: keyword arguments for the function.
        overrides: fields of the workload that override what the function returned.
        options: options of the search. Those that were not set are those of the function.
        environment: where the tuner measures. Only a worker in a comparable environment takes plans.
        memory_bytes: memory budget of the search.
        objective: defines the score of a trial.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    study: str
    target: str
    arguments: dict[str, Any] = {}
    overrides: dict[str, Any] = {}
    options: Options = Options()
    environment: Environment
    memory_bytes: int
    objective: Objective
