"""Searches on a GPU, each with a fault at a random place: see scripts/chaos."""

import subprocess
import sys

import pytest

from autofit.devices.base import Device


@pytest.mark.fault("F26")
def test_searches_with_random_faults_change_nothing_and_leave_nothing(device: Device) -> None:
    command = [sys.executable, "-m", "scripts.chaos_runs", "--device", device.type, "--runs", "14", "--seed", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert (done.returncode, done.stdout.partition(";")[0]) == (0, "14 runs, 0 with a finding"), (
        done.stdout + done.stderr
    )
