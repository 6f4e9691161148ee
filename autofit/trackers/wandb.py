"""Wandb: logs a search as one run of Weights & Biases. Offline, unless WANDB_MODE says otherwise.

PROJECT is the name of the project (default: WANDB_PROJECT, or "autofit"). An offline run is a folder below `wandb/`, or
below WANDB_DIR; `wandb sync` uploads it. Metrics and texts have the names of `autofit.trackers.run_log`; those of a
trial have the axis `trial/step`. The parameters are the config, the final figures and texts the summary. Files are in
the artifact `autofit-ID` of type "autofit".
"""

import os
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar

from autofit.trackers.base import Conclusion, Ending, Tracker, Value

PROJECT = "autofit"
"""Name of the project if neither PROJECT nor WANDB_PROJECT is given."""
INIT_S, FINISH_S = 20.0, 5.0
"""Maximum time in seconds to start a run, and to upload what is left at its end. wandb's defaults are 90 s and no
limit."""


class Wandb(Tracker):
    """Logs a search as one run of Weights & Biases."""

    name: ClassVar[str] = "wandb"
    place: ClassVar[str] = "PROJECT"
    modules: ClassVar[tuple[str, ...]] = ("wandb",)
    extra: ClassVar[str] = "wandb"
    _run: Any

    def open(self, title: str, parameters: Mapping[str, Value]) -> None:
        """Starts a run beside that of the user, if there is one."""
        wandb: Any = import_module("wandb")
        self._run = wandb.init(
            project=self.where or os.environ.get("WANDB_PROJECT") or PROJECT,
            name=title or None,
            config=dict(parameters),
            mode=os.environ.get("WANDB_MODE") or "offline",
            dir=os.environ.get("WANDB_DIR") or os.getcwd(),
            job_type="autofit",
            reinit="create_new",
            settings=wandb.Settings(
                silent=True, console="off", init_timeout=INIT_S, finish_timeout=FINISH_S, x_disable_stats=True
            ),
        )
        for prefix in ("trial", "proof"):
            self._run.define_metric(f"{prefix}/*", step_metric="trial/step")

    def log(self, step: int, metrics: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Logs a step."""
        self._run.log({**metrics, **texts, "trial/step": step})

    def conclude(self, conclusion: Conclusion) -> None:
        """Logs the summary and the files."""
        wandb: Any = import_module("wandb")
        self._run.summary.update({**conclusion.metrics, **conclusion.texts})
        artifact = wandb.Artifact(f"autofit-{self._run.id}", type="autofit")
        for name, text in conclusion.documents.items():
            with artifact.new_file(name, mode="w", encoding="utf-8") as file:
                file.write(text)
        self._run.log_artifact(artifact)

    def close(self, ending: Ending) -> None:
        """Ends the run."""
        self._run.summary["result/ending"] = ending.value
        self._run.finish(exit_code=0 if ending is Ending.FINISHED else 1)
