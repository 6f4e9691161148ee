"""RunLog: what of a search is logged to an experiment tracker, and under which names.

Parameters, at the start:
    title, command, objective, memory_budget_bytes, time_budget_s, max_trials, workload (digest), device, device_type,
    capacity_bytes, threads, `version.NAME`, `setting.NAME`, `baseline.KNOB`.

One step for each trial and proof that ran, numbered from 1:
    metrics `trial/throughput_per_s`, `trial/gain` (over the baseline's probe), `trial/peak_memory_bytes`,
    `trial/duration_s`; texts `trial/plan`, `trial/status`, `trial/reason`. A proof has `proof/` instead of `trial/`,
    and no gain: a proof and a probe are different runs.

At the end:
    metrics `result/gain`, `result/gain_low`, `result/gain_high`, `result/throughput_per_s`,
    `result/peak_memory_bytes`, `result/memory_budget_bytes`, `result/duration_s`, `result/trials` and
    `result/trials_STATUS`; texts `result/plan`, `result/caveats` and, if the search failed, `result/failure`; the file
    `autofit.yaml` (the plan), and the report, which has a row for each plan.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping

from autofit import planfile
from autofit.core.objective import Objective
from autofit.core.plan import Plan
from autofit.core.printable import one_line, printable
from autofit.core.trial import Trial
from autofit.core.wording import describe_plan
from autofit.search.evidence import STOPPED_BY_USER, SearchEvidence, SearchResult
from autofit.search.request import Event
from autofit.trackers.base import Conclusion, Ending, Tracker, Value

Attach = Callable[[SearchResult], Mapping[str, str]]
"""Returns further text files to log with a result, by file name."""
MAX_TEXT = 2000
"""Maximum number of characters in a text. Texts come from the user's code and may be of any length."""


class RunLog:
    """Logs the events of one search, and the documents that `attach` makes of its result."""

    def __init__(self, tracker: Tracker, attach: Attach) -> None:
        self._tracker, self._attach = tracker, attach
        self._objective = Objective()
        self._baseline: Plan | None = None
        self._baseline_rate: float | None = None
        self._steps = 0
        self._opened, self._ending = False, Ending.INTERRUPTED

    def __call__(self, event: Event) -> None:
        """Logs one event."""
        if event.asked is not None:
            self._objective, self._baseline = event.asked.objective, event.asked.baseline
            self._opened = True
            self._tracker.open(event.asked.title, parameters_of(event.asked))
        elif event.kind in ("trial", "proof") and event.trial is not None:
            self._log_trial(event.kind, event.trial)
        elif event.result is not None:
            self._conclude(event.result)

    def close(self) -> None:
        """Ends the run, if it was started."""
        if self._opened:
            self._opened = False
            self._tracker.close(self._ending)

    def _log_trial(self, kind: str, trial: Trial) -> None:
        self._steps += 1
        measurement = trial.outcome.measurement
        figures: dict[str, float | None] = {"duration_s": trial.outcome.duration_s}
        if measurement is not None:
            rate = self._objective.score(measurement)
            figures |= {"throughput_per_s": rate, "peak_memory_bytes": measurement.memory.judged_bytes}
            if kind == "trial":  # other runs are not compared with the baseline's probe
                if trial.plan == self._baseline:
                    self._baseline_rate = rate
                figures["gain"] = rate / self._baseline_rate if self._baseline_rate else None
        texts = {"plan": self._named(trial.plan), "status": trial.outcome.status.value, "reason": trial.outcome.reason}
        self._tracker.log(
            self._steps,
            _finite({f"{kind}/{name}": figure for name, figure in figures.items()}),
            _texts({f"{kind}/{name}": text for name, text in texts.items()}),
        )

    def _conclude(self, result: SearchResult) -> None:
        r, evidence = result.answer, result.evidence
        interrupted = r is not None and r.stopped.startswith(STOPPED_BY_USER)
        self._ending = Ending.FAILED if r is None else Ending.INTERRUPTED if interrupted else Ending.FINISHED
        counts = Counter(t.outcome.status.value for t in result.trials)
        metrics: dict[str, float | None] = {"result/trials": len(result.trials)}
        metrics |= {f"result/trials_{status.replace(' ', '_')}": count for status, count in counts.items()}
        metrics["result/memory_budget_bytes"] = evidence.budget.memory_bytes
        texts = {"result/failure": evidence.failure}
        if r is not None:
            gain = {} if r.gain is None else {"gain": r.gain.value, "gain_low": r.gain.low, "gain_high": r.gain.high}
            metrics |= {f"result/{name}": value for name, value in gain.items()}
            rate = r.rate_per_s if r.rate_per_s is not None else r.objective.score(r.proof)
            metrics |= {"result/throughput_per_s": rate, "result/duration_s": r.duration_s}
            metrics["result/peak_memory_bytes"] = r.proof.memory.judged_bytes
            texts |= {"result/plan": self._named(r.plan), "result/caveats": "\n".join(r.caveats)}
        documents = {**({} if r is None else {"autofit.yaml": planfile.dumps(r)}), **self._attach(result)}
        self._tracker.conclude(Conclusion(_finite(metrics), _texts(texts), documents))

    def _named(self, plan: Plan) -> str:
        return describe_plan(plan, self._baseline or plan)


def parameters_of(asked: SearchEvidence) -> dict[str, Value]:
    """Returns the request and the environment of a search as parameters. A limit that is not set is left out."""
    budget, environment = asked.budget, asked.environment
    found: dict[str, object] = {
        "title": asked.title or None,
        "command": asked.command or None,
        "objective": asked.objective.unit,
        "memory_budget_bytes": budget.memory_bytes,
        "time_budget_s": budget.time_s,
        "max_trials": budget.max_trials,
        "workload": environment.workload,
        "device": environment.device_name,
        "device_type": environment.device_type,
        "capacity_bytes": environment.capacity_bytes,
        "threads": environment.threads,
    }
    found |= {f"version.{name}": version for name, version in environment.versions.items()}
    found |= {f"setting.{name}": setting for name, setting in environment.settings.items()}
    found |= {f"baseline.{knob}": value for knob, value in asked.baseline.values.items()}
    return {one_line(name): _value(value) for name, value in found.items() if value is not None}


def _finite(metrics: Mapping[str, object]) -> dict[str, float]:
    """Returns the metrics that are numbers and finite: not every tracker stores the others."""
    numbers = {name: float(figure) for name, figure in metrics.items() if isinstance(figure, int | float)}
    return {name: figure for name, figure in numbers.items() if math.isfinite(figure)}


def _texts(texts: Mapping[str, str]) -> dict[str, str]:
    return {name: _cut(printable(text)) for name, text in texts.items() if text}


def _value(value: object) -> Value:
    """Returns a value as a number, or as one line of text."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return _cut(one_line(str(value)))


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 2]}.."
