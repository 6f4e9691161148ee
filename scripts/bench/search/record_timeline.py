"""Records the timeline of a real search, as the command line makes it: a child probes, this process decides.

    python -m scripts.bench.search.record_timeline examples/gpt.py:make_workload cpu_gpt --time 2min

The file is for `tests/data/timelines`, where `scripts.bench.search.anytime` finds it.
"""

import argparse
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autofit.core.answer import Answer
from autofit.core.briefing import Briefing, Options
from autofit.core.budget import Clock
from autofit.core.units import parse_time
from autofit.probing.remote.bench import RemoteBench, Target
from autofit.search.request import Event, Request
from autofit.search.search import search
from scripts.bench import files
from scripts.bench.search import timelines
from scripts.bench.search.timelines import Timeline


class Recorder:
    """What happens in a search, with the seconds since it began.

    Args:
        clock: clock of the search.

    Attributes:
        events: phases of the child and events of the search, in order.
        briefing: what was known before the first probe; None until the child is open.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.events: list[dict[str, Any]] = []
        self.briefing: Briefing | None = None

    def beat(self, phase: str) -> None:
        """Notes the phase of the child, unless it is the one before."""
        if not self.events or self.events[-1].get("phase") != phase:
            self.events.append({"at_s": round(self._clock.elapsed_s, 3), "phase": phase})

    def __call__(self, event: Event) -> None:
        """Notes an event of the search, with what a trial measured."""
        found: dict[str, Any] = {"at_s": round(self._clock.elapsed_s, 3), "kind": event.kind, "text": event.text}
        if event.trial is not None:
            outcome = event.trial.outcome
            found |= {
                "plan": event.trial.plan.values,
                "purpose": event.trial.purpose.value,
                "status": outcome.status.value,
                "duration_s": outcome.duration_s,
            }
            if (measured := outcome.measurement) is not None:
                found |= {
                    "step_s": measured.step_time_s,
                    "compile_s": measured.compile_s,
                    "peak_bytes": measured.memory.judged_bytes,
                }
        self.events.append(found)

    def search(self, target: Target, request: Request, log: Path | None = None) -> Answer:
        """Returns the answer of a whole search.

        Raises:
            AutofitError: there is none.
        """
        with RemoteBench(target, beat=self.beat, clock=self._clock, log=log) as bench:
            self.briefing = bench.briefing
            return search(bench, request, [self], self._clock)

    def timeline(self, name: str, command: str) -> Timeline:
        """Returns the timeline of the search.

        Raises:
            ValueError: the baseline did not run.
        """
        if self.briefing is None:
            raise ValueError(f"the search of {name} ended before its first probe")
        environment = self.briefing.environment
        source = f"{environment.device_name}, {_versions(environment.versions)}, {platform.machine()}: {command}"
        return timelines.of_events(name, source, self.events, self.briefing)


def _versions(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items() if name != "autofit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", help="FILE:FUNCTION")
    parser.add_argument("name", help="name of the timeline, and of its file")
    parser.add_argument("--time", default="2min", help="time budget (%(default)s)")
    parser.add_argument("--memory", help="memory budget")
    parser.add_argument("--out", type=Path, default=timelines.FOLDER, help="folder (%(default)s)")
    given = parser.parse_args()
    limit_s = parse_time(given.time)
    recorder = Recorder(Clock(limit_s=limit_s))
    target = Target(name=given.target, arguments={}, device=None, options=Options(memory_budget=given.memory))
    found = recorder.search(target, Request(time_s=limit_s, study=":memory:", isolated=True, title=given.name))
    command = f"python -m scripts.bench.search.record_timeline {given.target} {given.name} --time {given.time}"
    files.write(given.out / f"{given.name}.json", timelines.text(recorder.timeline(given.name, command)))
    print(found.plan)


if __name__ == "__main__":
    main()
