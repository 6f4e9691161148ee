"""A process of its own on the device, asked over its standard input: one JSON object a line, and one line back.

{"do": "read"}                          what it sees of the device
{"do": "hold", "bytes": N}              allocates; {"do": "drop"} gives all of that back
{"do": "evaluate", "held": MIB, ...}    a probe of `tests.cuda.targets.Sized` with a budget
{"do": "train", "lengths": [N, ...]}    the peak of reserved memory in steps of `tests.cuda.targets.varying`
"""

import gc
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[2]


class Process:
    """Starts the process with `environment` beside this one's; use it as a context manager."""

    def __init__(self, **environment: str) -> None:
        paths = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **environment, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )

    def ask(self, do: str, **values: Any) -> dict[str, Any]:
        """Returns the answer to one request."""
        self.begin(do, **values)
        return self.end()

    def begin(self, do: str, **values: Any) -> None:
        """Sends a request, to be ended with `end`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"do": do, **values}) + "\n")
        self._process.stdin.flush()

    def end(self) -> dict[str, Any]:
        """Waits for the answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the process ended with {self._process.wait()}"
        answer = json.loads(line)
        assert isinstance(answer, dict)
        return answer

    def kill(self) -> None:
        """Ends the process as the system does: it gives nothing back itself."""
        self._process.kill()
        self._process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None and not pipe.closed:
                pipe.close()
        self.kill()


def serve() -> None:
    """Answers requests until the input ends."""
    import torch  # noqa: PLC0415  # the tests that import this file for `Process` need none of these

    from autofit import devices  # noqa: PLC0415
    from tests.cuda import targets  # noqa: PLC0415

    torch.set_num_threads(1)
    held: list[torch.Tensor] = []
    device = devices.choose("cuda")

    def read() -> dict[str, Any]:
        account = device.account()
        assert account is not None
        gc.collect()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        return {
            "free": free,
            "total": total,
            "reserved": torch.cuda.memory_reserved(),
            "allocated": torch.cuda.memory_allocated(),
            "fraction": torch.cuda.get_per_process_memory_fraction(),
            "available": devices.choose("cuda").available_bytes(),
            "capacity": devices.choose("cuda").capacity_bytes(),
            "caveats": devices.choose("cuda").caveats(),
            "budget": devices.choose("cuda").budget(None, varies=False).memory_bytes,
            "capabilities": sorted(device.capabilities()),
            "versions": device.versions(),
            "account": account.model_dump(),
            "name": device.name(),
        }

    def hold(bytes: int) -> dict[str, Any]:  # the name in the request
        held.append(torch.empty(bytes, dtype=torch.uint8, device="cuda"))
        return read()

    def drop() -> dict[str, Any]:
        held.clear()
        return read()

    def evaluate(held: float, memory: int | str | float | None, enforce: bool = True, **plan: Any) -> dict[str, Any]:
        options = targets.BATCHING.model_copy(update={"memory_budget": memory, "enforce": enforce})
        outcome = targets.evaluate(targets.sized(held=held), devices.choose("cuda"), options, **plan)
        return {**read(), "outcome": outcome.model_dump(mode="json")}

    def train(lengths: list[int]) -> dict[str, Any]:
        _, step = targets.varying(lengths)
        gc.disable()
        for _ in lengths:
            step()
        return {"reserved": torch.cuda.max_memory_reserved()}

    answers: dict[str, Callable[..., dict[str, Any]]] = {
        each.__name__: each for each in (read, hold, drop, evaluate, train)
    }
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(answers[request.pop("do")](**request)), flush=True)  # noqa: T201  # its answer


if __name__ == "__main__":
    serve()
