"""Tunes an architecture in 120 s, as the command line does, and compares the plan with recipes by hand.

The plan and the recipes then train in plain loops of a process of their own (`by_hand.py`). Required: the search has
an answer within its time, and no recipe trains faster than its plan. The timeline of the search (what ran when, and
what it cost) is written beside the figures: `tests/data/timelines` is made of such files.
"""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from autofit import planfile
from autofit.core.answer import Answer
from autofit.core.briefing import Options
from autofit.core.budget import Clock
from autofit.core.errors import AutofitError
from autofit.core.units import format_duration
from autofit.core.wording import describe_plan
from autofit.probing.remote.bench import Target
from autofit.search.request import Request
from scripts.bench import files
from scripts.bench.gpu import stage
from scripts.bench.search import timelines
from scripts.bench.search.record_timeline import Recorder

SECONDS = 120.0
"""Time budget of the search."""
LEAST_RATIO = 0.98
"""The plan may be this much slower than the best recipe: the noise of steps that ran one after the other."""


def tuned(name: str, given: Any, recorder: Recorder) -> Answer:
    """Returns the answer of a search by the way of the command line: a child probes, this process decides."""
    module = f"{__package__}.architectures"
    target = Target(name=f"{module}:{name}", arguments={"scale": given.scale}, device=given.device, options=Options())
    request = Request(time_s=given.seconds, study=":memory:", isolated=True, title=name)
    return recorder.search(target, request, given.out / f"anytime-{name}.log")


def run(given: Any) -> tuple[str, dict[str, Any], bool]:
    """Returns the summary of the stage, its figures, and whether the requirements are met."""
    name, out = given.architecture, given.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    plan, go, hand = (out / f"anytime-{name}.{end}" for end in ("yaml", "go", "hand.json"))
    for path in (plan, go, hand):
        path.unlink(missing_ok=True)
    command = [sys.executable, "-m", "scripts.bench.gpu.by_hand", name, "--scale", given.scale]
    command += ["--device", given.device, "--plan", str(plan), "--go", str(go), "--json", str(hand)]
    with subprocess.Popen(command) as beside:
        clock = Clock(limit_s=given.seconds)
        recorder, failure, found = Recorder(clock), "", None
        try:
            found = tuned(name, given, recorder)
            planfile.save(found, plan)
        except AutofitError as error:
            failure = f"{type(error).__name__}: {error}"
        took_s = clock.elapsed_s
        with suppress(ValueError):  # the baseline did not run
            recorded = recorder.timeline(f"gpu_{name}", f"python -m {__package__}.anytime {name}")
            files.write(out / f"timeline-{name}.json", timelines.text(recorded))
        go.touch()
        with suppress(subprocess.TimeoutExpired):
            beside.wait(given.hand_s)
        beside.kill()
    by_hand = files.read(hand) or {}
    return judged(name, found, failure, took_s, by_hand)


def judged(
    name: str, found: Answer | None, failure: str, took_s: float, by_hand: dict[str, Any]
) -> tuple[str, dict[str, Any], bool]:
    """Returns the summary, the figures, and whether there is a plan that no recipe beats."""
    rates = {text: each["samples_per_s"] for text, each in by_hand.items() if "samples_per_s" in each}
    ours = rates.pop("plan", 0.0)
    best = max(rates.values(), default=0.0)
    ratio = ours / best if ours and best else None
    figures: dict[str, Any] = {"architecture": name, "took_s": took_s, "by_hand": by_hand, "ratio": ratio}
    figures |= {"failure": failure, "table": stage.table(["recipe", "samples/s"], [("plan", ours), *rates.items()])}
    if found is None:
        return f"anytime {name}: no answer after {format_duration(took_s)}: {failure}", figures, False
    figures |= {"answer": found.model_dump(mode="json", by_alias=True)}
    against = "not compared" if ratio is None else f"{ratio:.2f} of the best recipe by hand"
    text = f"{describe_plan(found.plan, found.baseline.plan)}, {found.gain} of the baseline, {against}"
    passed = ratio is not None and ratio >= LEAST_RATIO
    return f"anytime {name}: {text}, after {format_duration(took_s)}", figures, passed


def main() -> None:
    parser = stage.parser(__doc__ or "")
    parser.add_argument("architecture")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="time budget of the search (%(default)s)")
    parser.add_argument("--hand-s", type=float, default=150.0, help="most seconds of the recipes (%(default)s)")
    given = stage.parse(parser)
    given.out = Path(given.out)
    stage.conclude(f"anytime {given.architecture}", given, lambda: run(given))


if __name__ == "__main__":
    main()
