"""`autofit tune` on several ranks: torchrun starts them, and each searches in its own process."""

import argparse
import logging
import os
import signal
import sys
import tempfile
import uuid

import torch

from autofit import devices
from autofit.cli.outcome import say, terminable
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

    An interrupt from the terminal reaches the ranks as well. They end by themselves, and so does this process then.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs  # noqa: PLC0415  # take a second
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError  # noqa: PLC0415
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch  # noqa: PLC0415

    os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // given.nproc, 1)))
    signal.signal(signal.SIGINT, lambda *_: None)
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # rank 0 says what failed
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
            signals_to_handle="SIGTERM,SIGHUP,SIGQUIT",
        )
        try:
            elastic_launch(config, sys.executable)("-m", "autofit", *given.words)
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
