"""Mlflow: logs a search as one run of MLflow, with a client of its own.

URI is a tracking URI, such as "sqlite:///mlflow.db" or "http://server:5000". Without it, the run goes where MLflow logs
in this process: to MLFLOW_TRACKING_URI, or to a database in the working directory. The experiment is that of
MLFLOW_EXPERIMENT_NAME, or "autofit". Metrics have the names of `autofit.trackers.run_log`. MLflow has no texts by step:
the reason of each plan is in the artifact `autofit-report.json`. Final texts are artifacts, such as
`result/caveats.txt`. The tag `autofit.ending` says how the search ended.
"""

import logging
import os
import re
import socket
import time
from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, Self
from urllib.parse import urlsplit
from urllib.request import getproxies

from autofit.trackers.base import Conclusion, Ending, Tracker, Value

EXPERIMENT = "autofit"
"""Name of the experiment if MLFLOW_EXPERIMENT_NAME is not set."""
CONNECT_S = 3.0
"""Time in seconds after which a server that does not accept a connection counts as away. MLflow's own client retries
for minutes."""
BATCH = 100
"""Maximum number of parameters in one call of `log_batch`; a limit of MLflow's API."""
MAX_PARAMETER = 500
"""Maximum number of characters in the value of a parameter that servers of every MLflow 2 and 3 accept."""
_TELEMETRY = "MLFLOW_DISABLE_TELEMETRY"
STATUS = {Ending.FINISHED: "FINISHED", Ending.FAILED: "FAILED", Ending.INTERRUPTED: "KILLED"}
"""MLflow's status of a run."""


class Mlflow(Tracker):
    """Logs a search as one run of MLflow."""

    name: ClassVar[str] = "mlflow"
    place: ClassVar[str] = "URI"
    modules: ClassVar[tuple[str, ...]] = ("mlflow", "mlflow.entities")
    extra: ClassVar[str] = "mlflow"
    _client: Any
    _experiment: str
    _run: str

    @classmethod
    def make(cls, where: str) -> Self:
        """Imports MLflow. Its usage statistics stay off unless the user set MLFLOW_DISABLE_TELEMETRY."""
        is_set = _TELEMETRY in os.environ
        os.environ.setdefault(_TELEMETRY, "true")
        try:
            return super().make(where)
        finally:
            if not is_set:
                del os.environ[_TELEMETRY]

    def connect(self) -> None:
        """Opens the database or the server, which may have to make its tables first."""
        mlflow: Any = import_module("mlflow")
        uri, name = self.where or mlflow.get_tracking_uri(), os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        _check_reachable(uri)
        logger = logging.getLogger("mlflow.store.db.utils")  # says that it makes tables
        level = logger.level
        logger.setLevel(logging.WARNING)
        try:
            self._client = mlflow.MlflowClient(tracking_uri=uri)
            found = self._client.get_experiment_by_name(name)
            self._experiment = self._client.create_experiment(name) if found is None else found.experiment_id
        finally:
            logger.setLevel(level)

    def open(self, title: str, parameters: Mapping[str, Value]) -> None:
        """Starts the run."""
        entities: Any = import_module("mlflow.entities")
        self._run = self._client.create_run(self._experiment, run_name=title or None).info.run_id
        params = [entities.Param(_key(name), str(value)[:MAX_PARAMETER]) for name, value in parameters.items()]
        for at in range(0, len(params), BATCH):
            self._client.log_batch(self._run, params=params[at : at + BATCH])

    def log(self, step: int, metrics: Mapping[str, float], texts: Mapping[str, str]) -> None:
        """Logs the metrics of a step. The texts are in the report."""
        entities: Any = import_module("mlflow.entities")
        stamp = int(time.time() * 1000)  # MLflow counts in milliseconds
        logged = [entities.Metric(_key(name), figure, stamp, step) for name, figure in metrics.items()]
        self._client.log_batch(self._run, metrics=logged)

    def conclude(self, conclusion: Conclusion) -> None:
        """Logs the final metrics and texts, and the files."""
        self.log(0, conclusion.metrics, {})
        texts = {f"{name}.txt": text for name, text in conclusion.texts.items()}
        for name, text in (texts | dict(conclusion.documents)).items():
            self._client.log_text(self._run, text, name)

    def close(self, ending: Ending) -> None:
        """Ends the run."""
        self._client.set_tag(self._run, "autofit.ending", ending.value)
        self._client.set_terminated(self._run, STATUS[ending])


def _check_reachable(uri: str) -> None:
    """Connects to a server once.

    Raises:
        OSError: it does not accept a connection. Behind a proxy this is not checked.
    """
    parts = urlsplit(uri)
    if parts.scheme in ("http", "https") and parts.hostname and not getproxies():
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname, port), timeout=CONNECT_S).close()


def _key(name: str) -> str:
    """Returns a name that MLflow accepts: up to 250 characters that could be a relative path."""
    safe = re.sub(r"[^A-Za-z0-9_.:/ -]", "_", name)[:250]
    return "/".join(part.strip(". ") or "_" for part in safe.split("/"))
