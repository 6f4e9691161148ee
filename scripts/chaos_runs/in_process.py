"""Runs `autofit.tune` in this process and compares the state before and after. Prints a JSON line for each run.

python -m scripts.chaos_runs.in_process DEVICE SEED NUMBER [NUMBER ...]
"""

import contextlib
import faulthandler
import hashlib
import io
import json
import os
import random
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

import autofit
from autofit.core.budget import OVERTIME_RATIO, OVERTIME_S
from autofit.core.errors import AutofitError
from scripts.chaos_runs.cases import Case, case
from scripts.chaos_runs.workloads import Made, made

BUDGET_S, MEMORY = 4.0, "1GiB"
LATE_S = (1 + OVERTIME_RATIO) * BUDGET_S + OVERTIME_S
"""Most seconds that a run may take under the promise of the time budget."""
HUNG_S = 90.0
OF_TORCH = ("tqdm_monitor", "ThreadPoolExecutor")
"""Names of threads that torch's compiler starts once and keeps. autofit has none of these names."""
INTENDED = {"interrupt": KeyboardInterrupt, "exit": SystemExit}
"""Exceptions of users' code that are not errors and may be raised by `tune`."""


def state_of(workload: Made) -> dict[str, str]:
    """Returns digests, by name, of everything that belongs to a workload and of the global state of the process."""
    found = dict(_named("", {**workload.arguments, **workload.beside}))
    found["torch's random numbers"] = _digest(torch.get_rng_state().numpy().tobytes())
    found["Python's random numbers"] = _digest(repr(random.getstate()).encode())
    found["NumPy's random numbers"] = _digest(repr(np.random.get_state()).encode())  # the global generator
    flags = (
        torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads(), torch.is_autocast_enabled("cpu"),
        torch.are_deterministic_algorithms_enabled(), torch.is_inference_mode_enabled(), sys.getrecursionlimit(),
        torch._C._autograd._profiler_enabled(),
    )  # fmt: skip
    found["flags"] = repr(flags)
    return found


def _named(name: str, value: Any, depth: int = 0) -> Iterator[tuple[str, str]]:
    if isinstance(value, torch.Tensor):
        yield name, _tensor(value)
    elif isinstance(value, nn.Module):
        yield from _module(name, value)
    elif isinstance(value, torch.optim.Optimizer):
        yield from _named(f"{name} state", value.state_dict(), depth + 1)
    elif isinstance(value, (dict, list, tuple)) and depth < 6:
        yield f"{name} length", str(len(value))
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _named(f"{name}[{key}]", each, depth + 1)
    elif isinstance(value, (int, float, str, bool, type(None))):
        yield name, repr(value)


def _module(name: str, module: nn.Module) -> Iterator[tuple[str, str]]:
    for each, tensor in (*module.named_parameters(remove_duplicate=False), *module.named_buffers()):
        yield f"{name}.{each}", _tensor(tensor)
    yield f"{name} modes", repr([each.training for each in module.modules()])
    fault = getattr(module, "_fault", None)
    if fault is not None:
        yield f"{name} fault", f"{fault.at.visits} {len(fault.at.leaked)}"


def _tensor(tensor: torch.Tensor) -> str:
    plain = tensor.detach().cpu().contiguous()
    gradient = "" if tensor.grad is None else _digest(tensor.grad.cpu().contiguous().numpy().tobytes())
    place = f"{tensor.data_ptr()} {tuple(tensor.stride())} {tensor.requires_grad}"
    return f"{_digest(plain.numpy().tobytes())} {gradient} {place}"


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def run(one: Case, device: str) -> dict[str, Any]:
    """Returns the result of a run: how it ended, how long it took, and what is wrong."""
    workload = made(device, **one.arguments())
    before, threads, descriptors = state_of(workload), set(threading.enumerate()), len(os.listdir("/proc/self/fd"))
    began = time.perf_counter()
    ended, wrong = _tuned(workload, one, device)
    took_s = time.perf_counter() - began
    after = state_of(workload)
    changed = sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))
    if changed:
        wrong.append(f"changed: {', '.join(changed[:8])}")
    if took_s > LATE_S:
        wrong.append(f"took {took_s:.1f} s of {BUDGET_S:.0f} s")
    left = [each for each in threading.enumerate() if each not in threads and not each.name.startswith(OF_TORCH)]
    if left:
        wrong.append(f"threads left: {', '.join(each.name for each in left)}")
    if len(os.listdir("/proc/self/fd")) > descriptors + 4:  # libraries start some threads once
        wrong.append("descriptors left open")
    return {"number": one.number, "ended": ended, "took_s": round(took_s, 2), "wrong": wrong}


def _tuned(workload: Made, one: Case, device: str) -> tuple[str, list[str]]:
    """Returns how a run ended, and what is wrong with it."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            budgets: dict[str, Any] = {"memory_budget": MEMORY, "time_budget": BUDGET_S}
            autofit.tune(**workload.arguments, **budgets, device=device, study=":memory:", progress=False)
    except AutofitError as error:
        ended = type(error).__name__
        return ended, [f"an internal error: {ended}: {error}"] if error.exit_code == 1 else []
    except INTENDED.get(one.fault, ()) as error:
        return type(error).__name__, []
    except BaseException as error:  # noqa: BLE001  # anything else is a finding
        return type(error).__name__, [f"raised {type(error).__name__}: {error}"]
    return "answered", []


def main() -> None:
    """Runs the cases given on the command line."""
    device, seed, *numbers = sys.argv[1], *map(int, sys.argv[2:])
    for number in numbers:
        faulthandler.dump_traceback_later(HUNG_S, exit=True)
        print(json.dumps(run(case(seed, number), device)), flush=True)
        faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    main()
