"""Kills a search at any moment and goes on with it: nothing that it finished is lost or doubled, and its answer stays.

    python -m tests.faults.kills --every 1            # at each write of the study in turn: before, within and after it
    python -m tests.faults.kills --random 200 --seed 0

The search runs on a simulated device without noise, with a real journal, in a child that dies of SIGKILL.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from optuna.storages.journal import JournalFileBackend

from autofit.core.objective import Objective
from autofit.core.outcome import Outcome
from autofit.core.trial import Purpose, Trial
from autofit.search.search import run
from autofit.study import Study
from tests.fakes import small_bench, tuning_of
from tests.study.samples import HERE, in_optuna

PARTS = (0.0, 0.5, 1.0)
"""How much of a line is on disk when its writer dies, as a share."""
KILLED = -signal.SIGKILL
AGAIN = 2
"""Number of plans whose speed a later run measures again: the baseline and the best one so far."""


class Told(NamedTuple):
    """What a search has said before its end.

    Attributes:
        code: how its process ended: 0, or the negative number of a signal.
        finished: what each finished trial was, by its number.
        answer: the chosen plan; "" if it did not come so far.
    """

    code: int
    finished: Mapping[int, str]
    answer: str


class Telling(Study):
    """A study that says on a pipe which trials are finished."""

    pipe = -1

    def finish(self, number: int, outcome: Outcome) -> Trial:
        trial = super().finish(number, outcome)
        say(self.pipe, [number, f"{trial.purpose.value} {trial.plan}"])
        return trial


def say(pipe: int, what: object) -> None:
    os.write(pipe, json.dumps(what).encode() + b"\n")


def search(path: Path, pipe: int) -> None:
    """Searches, or goes on with a search."""
    bench = small_bench(noise=0.0, drift=0.0)
    study = Telling(
        path,
        name="net",
        environment=HERE,
        space=bench.space.facts,
        objective=Objective(),
        memory_bytes=bench.budget_bytes,
    )
    study.pipe = pipe
    say(pipe, str(run(tuning_of(bench, study)).plan))
    study.close()


def in_child(path: Path, before: Callable[[], object] = lambda: None, after_s: float | None = None) -> Told:
    """Runs a search in a forked child.

    Args:
        path: the journal.
        before: what the child does first.
        after_s: seconds after which it is killed; None for never.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            before()
            search(path, writer)
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writer)
    if after_s is not None:
        time.sleep(after_s)
        os.kill(pid, signal.SIGKILL)
    with os.fdopen(reader) as pipe:
        said = [json.loads(line) for line in pipe if line.endswith("\n")]
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    finished = {each[0]: each[1] for each in said if isinstance(each, list)}
    return Told(code, finished, next((each for each in said if isinstance(each, str)), ""))


def dying(path: Path, write: int, part: float) -> Callable[[], None]:
    """Returns what has this process die in one of its writes to a journal, the first of which is 1.

    `part` of the line is on disk by then.
    """
    left, append = [write], JournalFileBackend.append_logs

    def counted(self: JournalFileBackend, logs: list[dict[str, Any]]) -> None:
        left[0] -= 1
        if left[0] == 0:
            line = json.dumps(logs[0], separators=(",", ":")).encode() + b"\n"
            with path.open("ab") as file:
                file.write(line[: int(part * len(line))])
            os.kill(os.getpid(), signal.SIGKILL)
        append(self, logs)

    def begin() -> None:
        JournalFileBackend.append_logs = counted  # type: ignore[method-assign]

    return begin


def faults(path: Path, killed: Told, whole: Told) -> list[str]:
    """Goes on with a killed search and returns what is wrong.

    Args:
        path: its journal.
        killed: what it said before its end.
        whole: what a search without a kill says.
    """
    resumed = in_child(path)
    if resumed.code:
        return [f"going on ended with {resumed.code}"]
    found = [f"the answer is {resumed.answer}, not {whole.answer}"] if resumed.answer != whole.answer else []
    stored = {trial.number: trial for trial in in_optuna(path)}
    unfinished = [number for number, trial in stored.items() if not trial.state.is_finished()]
    lost = [number for number in killed.finished if number not in stored]
    found += [f"not finished: {unfinished}"] if unfinished else []
    found += [f"lost: {lost}"] if lost else []
    doubled = sorted(killed.finished.keys() & resumed.finished)
    found += [f"numbers were given twice: {doubled}"] if doubled else []
    again = sorted(_probes(killed) & _probes(resumed))
    return found + ([f"measured again: {again}"] if len(again) > AGAIN else [])


def _probes(told: Told) -> set[str]:
    return {each for each in told.finished.values() if each.startswith(Purpose.PROBE.value)}


def at_each_write(folder: Path, step: int, parts: Sequence[float] = PARTS) -> tuple[int, list[str]]:
    """Kills a search in each `step`-th of its writes. Returns the number of kills and what was wrong."""
    whole, kills, found = in_child(folder / "whole"), 0, list[str]()
    for part in parts:
        for write in range(1, sys.maxsize, step):
            path = folder / f"{write}-{part}"
            killed = in_child(path, dying(path, write, part))
            if killed.code == 0:
                break
            kills += 1
            found += [f"write {write}, {part:.0%} of it on disk: {each}" for each in faults(path, killed, whole)]
            path.unlink()
    return kills, found


def at_random(folder: Path, count: int, seed: int) -> tuple[int, list[str]]:
    """Kills a search at random moments. Returns the number of kills that met it and what was wrong."""
    began = time.monotonic()
    whole = in_child(folder / "whole")
    took_s, chance, kills, found = time.monotonic() - began, random.Random(seed), 0, list[str]()
    while kills < count:
        path = folder / str(kills)
        killed = in_child(path, after_s=chance.uniform(0, took_s))
        kills += killed.code == KILLED
        found += [f"kill {kills}: {each}" for each in faults(path, killed, whole)]
        path.unlink(missing_ok=True)
    return kills, found


def main() -> int:
    """Does what the arguments say; returns 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--every", type=int, default=0, help="kill at each EVERY-th write; 0 for none")
    parser.add_argument("--random", type=int, default=0, help="number of kills at random")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder, found = Path(name), list[str]()
        for kill in (
            partial(at_each_write, folder, given.every) if given.every else None,
            partial(at_random, folder, given.random, given.seed) if given.random else None,
        ):
            kills, wrong = (0, []) if kill is None else kill()
            found += wrong
            sys.stdout.write("\n".join([*wrong, f"{kills} kills, {len(wrong)} faults", ""]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
