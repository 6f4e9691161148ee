"""Compares memory estimates from traces with torch's real allocator, on a real or phantom GPU.

    <python of a CUDA build> -m scripts.bench.memory.estimates --stand-in PYTHON [--held-back] [--trials]
                                                                [--only NAME] [--json FILE]

Each configuration of each architecture is traced at four sizes, and the traces are scaled to ten sizes and replayed.
Where scaling would interpolate between traced sizes, the size is traced itself, as in a search. The truth is the peak
of three real steps at each of the ten sizes, from an empty cache.

There are two kinds of traces. "here" uses fake CUDA tensors in the process that has the device. "stand-in" uses another
Python that sees no device, preferably with the same torch version (under a phantom it cannot be the same Python).

For two budgets of each configuration, the largest size that is estimated to fit is compared with the largest size that
fits: once without correction, and once corrected by the difference in one real run, with 1 % of the budget kept free.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from scripts.bench import files, report
from scripts.bench.memory.architectures import LOOSE
from scripts.bench.memory.held_back import HELD_BACK
from scripts.bench.memory.part import errors
from scripts.bench.memory.trials import TRIALS
from scripts.bench.report import percentile

WAYS = ("here", "stand-in")
GROUPS = {"development": LOOSE, "held back": HELD_BACK, "trials": TRIALS}
LIMITS = {"allocated": (1.0, 1.0, 0.01), "reserved": (0.003, 0.015, 0.04)}
"""Limits of the mean, the 95th percentile and the worst error."""
NEAR, RIGHT, SHARE = 0.01, 0.95, 0.97
ROOT = Path(__file__).resolve().parents[3]
PART = "scripts.bench.memory.part"


def measure(name: str, folder: Path, pythons: dict[str, str], quick: bool) -> dict[str, Any]:
    """Returns the figures of an architecture; they are read from `folder` if they are there.

    Args:
        pythons: the Python interpreter for each kind of trace.

    Raises:
        SystemExit: one of the processes failed; its last lines were printed before.
    """
    path = folder / f"{name}.json"
    known = files.read(path)
    for way in WAYS:
        if known is None or any(way not in row for row in known["configurations"]):
            command = [
                pythons[way],
                "-m",
                PART,
                way,
                name,
                str(path),
                *(["--quick"] if quick else []),
            ]
            done = subprocess.run(command, env=_environment(way), check=False)
            if done.returncode:
                raise SystemExit(f"estimates: {name} {way} ended with {done.returncode}")
            known = files.read(path)
    assert known is not None, "both ways have written it"
    print(in_lines(known), flush=True)
    return known


def _environment(way: str) -> dict[str, str]:
    """Returns the environment of a process. The stand-in sees neither a phantom nor a real device."""
    mine = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))}
    if way == "stand-in":
        for name in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
            mine.pop(name, None)
        mine["CUDA_VISIBLE_DEVICES"] = ""
    return mine


def in_lines(known: dict[str, Any]) -> str:
    """Returns the figures of an architecture, one line for each configuration."""
    lines = [f"{known['name']} ({known['family']})"]
    for row in known["configurations"]:
        words = []
        for way in WAYS:
            worst = [_worst(errors(row[way]["peaks"], row["truth"], which)) for which in (0, 1)]
            words.append(f"{way} {worst[0]:+.2%} {worst[1]:+.2%}{' refused' if row[way]['refused'] else ''}")
        top = max(reserved for _, reserved in row["truth"]) / 2**30
        sizes = f"{row['sizes'][0]}-{row['sizes'][-1]}"
        lines.append(f"  {row['configuration']:78s} {sizes:>12s} {top:5.1f} GiB; worst {'; '.join(words)}")
    return "\n".join(lines)


def _worst(values: list[float]) -> float:
    return max(values, key=abs)


def accuracy(rows: list[dict[str, Any]], way: str) -> dict[str, Any]:
    """Returns mean, 95th percentile and worst absolute error of one kind of trace over configurations, and times."""
    found: dict[str, Any] = {}
    for which, name in enumerate(LIMITS):
        all_errors = [abs(e) for row in rows for e in errors(row[way]["peaks"], row["truth"], which)]
        found[name] = [sum(all_errors) / len(all_errors), percentile(all_errors, 0.95), max(all_errors)]
        found[f"{name} exact"] = sum(e == 0 for e in all_errors) / len(all_errors)
    found["points"] = sum(len(row["sizes"]) for row in rows)
    found["refused"] = sum(bool(row[way]["refused"]) for row in rows)
    found["traced by itself"] = sum(size in row["sizes"] for row in rows for size in row[way]["traced_by_itself"])
    found["drawn"] = max((abs(error) for row in rows for error in _drawn(row, way)), default=0.0)
    for each in ("trace_s", "replay_s"):
        times = [seconds for row in rows for seconds in row[way][each]]
        found[each] = [sum(times) / len(times), max(times)]
    found["ok"] = all(
        got <= most for name, limits in LIMITS.items() for got, most in zip(found[name], limits, strict=True)
    )
    return found


def _drawn(row: dict[str, Any], way: str) -> list[float]:
    """Returns the errors of reserved peaks that scaling would have interpolated between traced sizes."""
    truth = dict(zip(row["sizes"], row["truth"], strict=True))
    return [reserved / truth[size][1] - 1 for size, _, reserved in row[way]["drawn"]]


def decided(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns how the largest sizes that are estimated to fit compare with the largest that fit."""
    all_of = [decision for row in rows for decision in row["decisions"]]
    near = [abs(d["said"] - d["best"]) <= NEAR * d["best"] for d in all_of]
    shares = [d["careful"] / d["best"] for d in all_of if d["best"]]
    found = {
        "decisions": len(all_of),
        "exact": sum(d["said"] == d["best"] for d in all_of),
        "near": sum(near),
        "over": sum(d["over_bytes"] > 0 for d in all_of),
        "careful over": sum(d["careful_over_bytes"] > 0 for d in all_of),
        "careful share": sum(shares) / len(shares),
        "least careful share": min(shares),
    }
    found["ok"] = sum(near) >= RIGHT * len(all_of) and not found["careful over"] and found["careful share"] >= SHARE
    return found


def in_words(name: str, group: dict[str, Any]) -> str:
    """Returns the figures of a group of architectures as a few lines."""
    lines = []
    for way in WAYS:
        got = group[way]
        parts = [f"{key} {got[key][0]:.2%} / {got[key][1]:.2%} / {got[key][2]:.2%}" for key in LIMITS]
        lines.append(
            f"{name}, {way}: {got['points']} points, mean / 95th / worst {', '.join(parts)}; "
            f"{got['reserved exact']:.0%} exact; {got['refused']} refused, {got['traced by itself']} traced themselves "
            f"(interpolated, reserved would be off by up to {got['drawn']:.1%}); trace {got['trace_s'][0]:.2f} s "
            f"(most {got['trace_s'][1]:.2f}), replay {1e3 * got['replay_s'][0]:.0f} ms: {_verdict(got['ok'])}"
        )
    got = group["decisions"]
    lines.append(
        f"{name}, decisions: {got['decisions']}, {got['exact']} exact, {got['near']} within 1 %, {got['over']} over; "
        f"with a probe and a margin {got['careful over']} over, {got['careful share']:.1%} of the best batch (least "
        f"{got['least careful share']:.1%}): {_verdict(got['ok'])}"
    )
    return "\n".join(lines)


def _verdict(passed: bool) -> str:
    return "ok" if passed else "MISSED"


def parse() -> argparse.Namespace:
    parser = report.parser(__doc__ or "")
    parser.add_argument("--only", metavar="NAME", action="append", help="use only this architecture; may be repeated")
    parser.add_argument("--held-back", action="store_true", help="also run the held-back architectures")
    parser.add_argument(
        "--trials", action="store_true", help="also run the architectures on which other people found errors"
    )
    parser.add_argument("--stand-in", metavar="PYTHON", default=sys.executable, help="a Python that sees no device")
    parser.add_argument("--quick", action="store_true", help="one configuration of each architecture, at four sizes")
    parser.add_argument(
        "--keep",
        metavar="DIR",
        type=Path,
        help="keep the figures of each architecture in this folder and continue from them",
    )
    parser.add_argument("--jobs", type=int, default=2, help="number of architectures to run in parallel")
    given = parser.parse_args()
    known = [*LOOSE, *HELD_BACK, *TRIALS]
    if unknown := sorted(set(given.only or ()) - set(known)):
        report.fail(f"estimates: {', '.join(unknown)} is unknown; expected {', '.join(known)}", 2)
    return given


def main() -> None:
    given = parse()
    more = [*(HELD_BACK if given.held_back else ()), *(TRIALS if given.trials else ())]
    names = given.only or [*LOOSE, *more]
    with tempfile.TemporaryDirectory() as passing:
        folder: Path = given.keep or Path(passing)
        folder.mkdir(parents=True, exist_ok=True)
        with ThreadPoolExecutor(given.jobs) as pool:
            pythons = {"here": sys.executable, "stand-in": given.stand_in}
            results = list(pool.map(lambda name: measure(name, folder, pythons, given.quick), names))
    groups: dict[str, Any] = {}
    for title, members in GROUPS.items():
        rows = [row for result in results if result["name"] in members for row in result["configurations"]]
        if rows:
            groups[title] = {way: accuracy(rows, way) for way in WAYS} | {"decisions": decided(rows)}
            print(in_words(title, groups[title]), flush=True)
    passed = all(part["ok"] for group in groups.values() for part in group.values())
    brief = "; ".join(
        f"{title}: allocated worst {group['here']['allocated'][2]:.2%}, reserved mean "
        f"{group['here']['reserved'][0]:.2%} worst {group['here']['reserved'][2]:.2%}, "
        f"{group['decisions']['near']} of {group['decisions']['decisions']} largest sizes within 1 %"
        for title, group in groups.items()
    )
    report.finish(
        f"estimates: {brief}: {_verdict(passed)}", {"groups": groups, "architectures": results}, given.json, passed
    )


if __name__ == "__main__":
    main()
