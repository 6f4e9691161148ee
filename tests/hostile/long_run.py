"""Gives a reader damaged files for a time: `python -m tests.hostile.long_run plan 600 FOLDER`.

Each input that finds a fault of a new kind is kept in the folder. Prints the number of inputs.
"""

import faulthandler
import json
import resource
import sys
import tempfile
import traceback
from pathlib import Path
from time import monotonic, process_time

from hypothesis import HealthCheck, Phase, given, seed, settings

from autofit.core.errors import AutofitError
from tests.hostile.readers import reader

LIMIT_S, HANG_S, MOST_BYTES, BATCH = 10.0, 60.0, 6 * 2**30, 300
_EXECUTED = ("os.system", "subprocess.Popen", "os.exec", "os.posix_spawn", "socket.connect", "ctypes.dlopen")


def run(name: str, time_s: float, kept: Path) -> dict[str, object]:
    tested, faults, executed = reader(name), dict[str, str](), list[str]()
    began, count, refused, folder = monotonic(), 0, 0, Path(tempfile.mkdtemp())
    sys.addaudithook(lambda event, given: executed.append(f"{event} {given}") if event in _EXECUTED else None)

    def one(data: bytes) -> None:
        nonlocal count, refused
        count += 1
        faulthandler.dump_traceback_later(HANG_S, exit=True)
        (kept / f"{name}.last").write_bytes(data)
        start_s, fault = process_time(), ""
        try:
            tested.read(data, folder)
        except AutofitError:
            refused += 1
        except BaseException as error:
            frames = traceback.extract_tb(error.__traceback__)
            ours = [frame for frame in frames if "/autofit/" in frame.filename][-1:] or frames[-1:]
            fault = f"{type(error).__name__} {ours[0].filename}:{ours[0].lineno}: {str(error)[:200]}"
        if (took_s := process_time() - start_s) > LIMIT_S:
            fault = fault or f"slow: {took_s:.0f} s"
        if executed:
            fault = f"ran {executed.pop()}"
        kind = fault.partition(": ")[0]
        if fault and kind not in faults:
            faults[kind] = fault
            (kept / f"{name}-{len(faults)}").write_bytes(data)
            sys.stdout.write(f"{name} {count} {len(data)} {fault}\n")
        for left in folder.iterdir():
            if left.is_file():
                left.unlink()

    for number in range(10**9):
        if monotonic() - began > time_s:
            break
        search = settings(
            max_examples=BATCH,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        search(seed(number)(given(tested.damaged)(one)))()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"reader": name, "inputs": count, "refused": refused, "kinds of faults": len(faults), "peak MiB": peak >> 20}


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    where = Path(sys.argv[3])
    where.mkdir(parents=True, exist_ok=True)
    sys.stdout.write(f"{json.dumps(run(sys.argv[1], float(sys.argv[2]), where))}\n")
