"""Runs a function on several real ranks of this machine, which communicate by gloo."""

import json
import tempfile
import warnings
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from torch import distributed

from autofit.workloads.step import Ranks

RANKS = 2
LIMIT_S = 120.0
"""Seconds after which a collective ends with an error."""


def launched(work: Callable[..., Any], *arguments: Any, ranks: int = RANKS) -> list[Any]:
    """Returns what `work(ranks, *arguments)` returns on each of several real ranks, which communicate by gloo.

    The result must be representable as JSON.

    Raises:
        ProcessException: a rank failed.
    """
    with tempfile.TemporaryDirectory() as folder:
        spawn: Any = vars(mp)["spawn"]  # torch has no types here
        spawn(_rank, (ranks, folder, work, arguments), nprocs=ranks)
        return [json.loads(Path(folder, str(number)).read_text()) for number in range(ranks)]


def unlaunched(work: Callable[..., Any], *arguments: Any) -> Any:
    """Returns what `work(*arguments)` returns in a process of its own that belongs to no launch."""
    with tempfile.TemporaryDirectory() as folder:
        spawn: Any = vars(mp)["spawn"]
        spawn(_alone, (folder, work, arguments), nprocs=1)
        return json.loads(Path(folder, "found").read_text())


def _alone(_: int, folder: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    Path(folder, "found").write_text(json.dumps(work(*arguments)))


def _rank(number: int, count: int, folder: str, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    limit = timedelta(seconds=LIMIT_S)
    distributed.init_process_group("gloo", f"file://{folder}/store", rank=number, world_size=count, timeout=limit)
    group = distributed.group.WORLD
    assert group is not None, "it was just made"
    found = work(Ranks.of(group, "cpu"), *arguments)
    Path(folder, str(number)).write_text(json.dumps(found))
    distributed.barrier()
    distributed.destroy_process_group()
