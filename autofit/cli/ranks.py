"""`autofit tune` on several ranks: torchrun starts them, and each searches in its own process."""

import argparse
import logging
import os
import sys
import tempfile
import uuid

import torch

from autofit import devices
from autofit.cli.outcome import INTERRUPTED, say, terminable
from autofit.core.answer import Answer
from autofit.core.budget import Clock
from autofit.in_process import search_on_ranks
from autofit.probing.remote.target import Target
from autofit.probing.remote.worker import made
from autofit.reports.writing import attached
from autofit.search.request import Request
from autofit.trackers.following import following

LOCAL = "LOCAL_RANK"
"""Variable of torchrun with the number of a rank on its machine, and so of its device."""


def started(given: argparse.Namespace) -> int:
    """Starts this command on each of several ranks with torchrun. Returns the exit code of the first that failed, or 0.

    torchrun passes an interrupt on to the ranks. Rank 0 then writes the best plan so far.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException  # noqa: PLC0415  # slow
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // given.nproc, 1)))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # metering warns of memory from before it, on each rank
    for name in [*logging.root.manager.loggerDict]:
        if name.startswith("torch.distributed.elastic"):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # rank 0 says what failed
    with tempfile.TemporaryDirectory(prefix="autofit-ranks-") as logs:
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=given.nproc,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=logs),
        )
        try:
            elastic_launch(config, sys.executable)("-m", "autofit", *given.words)
        except SignalException:  # passed on to the ranks, which have ended
            return INTERRUPTED
        except ChildFailedError as error:
            _, failure = error.get_first_failure()
            return failure.exitcode if failure.exitcode > 0 else 128 - failure.exitcode
    return 0


def searched(target: Target, request: Request, clock: Clock, given: argparse.Namespace) -> Answer:
    """Searches on this rank together with the others. All return the same answer."""
    with (
        terminable("the same command resumes from the trials in the study"),
        following(
            given.track, warn=lambda text: say(f"warning: {text}"), attach=attached, time_s=request.time_s
        ) as followers,
    ):
        workload, options, arguments = made(target.request(enforce=False))
        chosen = devices.choose(target.device or arguments.get("device"))
        if not chosen.is_host:
            if chosen.torch_device.index is None:
                chosen = devices.choose(f"{chosen.type}:{os.environ.get(LOCAL, '0')}")
            torch.get_device_module(chosen.type).set_device(chosen.torch_device)
            options = options.model_copy(update={"enforce": True})
        return search_on_ranks(workload, chosen, options, request, clock, not given.quiet, followers)[0]
