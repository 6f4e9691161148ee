"""Someone who joins can follow one probe through few files."""

import subprocess
import sys
from pathlib import Path
from types import FrameType

import torch
from torch.utils.data import DataLoader, TensorDataset

import autofit
from autofit import devices
from autofit.core.briefing import Options
from autofit.core.trial import Purpose
from autofit.probing.local_bench import LocalBench
from autofit.workloads.workload import Workload

MOST_FILES = 35
PACKAGE = str(Path(autofit.__file__).parent)


def test_a_probe_of_the_baseline_enters_at_most_35_files() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))
    data = TensorDataset(torch.randn(64, 8), torch.randint(0, 4, (64,)))
    workload = Workload(model, DataLoader(data, batch_size=8), loss_fn=torch.nn.functional.cross_entropy)
    entered = set[str]()

    def note(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            entered.add(frame.f_code.co_filename)

    with LocalBench(workload, devices.host(), Options(own_process=True)) as bench:
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            outcome = bench.evaluate(bench.briefing.space.baseline, Purpose.PROBE)
        finally:
            sys.setprofile(before)
    assert outcome.measured
    assert f"{PACKAGE}/probing/probe.py" in entered
    assert len(entered) <= MOST_FILES, sorted(entered)


def test_a_search_does_not_load_the_doctor() -> None:
    code = "import sys, autofit.api, autofit.probing.remote.worker; sys.exit('autofit.doctor' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(PACKAGE).parent)
