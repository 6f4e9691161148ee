"""Memory of a loader's workers: recorded levels of good and bad loaders, and loaders that are read here."""

import random
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import autofit
from autofit.doctor.diagnosis import Diagnosis
from autofit.doctor.findings import chosen
from autofit.doctor.findings.worker_growth import GrowingWorkers
from autofit.doctor.observation import Observation
from autofit.probing import loading
from autofit.probing.loading import WorkerGrowth, worker_growth
from autofit.workloads.sources import source_of
from tests.doctor.cases import held_outputs, observed, of
from tests.doctor.findings.test_plans import with_what_if

KIND, KIB = "worker-growth", 1024
HEALTHY = {
    "images, 1 worker": (1472, [156, 3544, -3396, 48, 64, 48]),
    "images, 2 workers": (2720, [352, 184, 1292, 1864, 56]),
    "images, 4 workers": (2688, [-796, 1416, 2444, -5860, 448]),
    "images and an array, 1 worker": (1632, [-2808, 9564, -11188, 5436, 2516, -3144]),
    "images and an array, 4 workers": (2592, [-448, 3900, 8144, -3536, 2168]),
    "rising by chance": (1500, [92, 848, 76, 1128, 660, 780]),
    "names that are all copied": (37000, [16280, 7660, 4612, 2192, 740, 308]),
    "a little": (38000, [20, 14, 18, 12, 16, 14]),
    "four intervals": (20000, [17872, 17604, 29412, 35476]),
}
"""Samples by interval, and what each added in KiB, of loaders that were measured, and some near the limits."""
GROWING = {
    "images and annotations, 1 worker": (1600, [4848, 2984, 2264, 1836, 1720, 1308], 1558),
    "images and annotations, 4 workers": (1536, [7700, 7276, 4828, 4948, 4496, 5384], 3754),
    "a cache": (20000, [17872, 17604, 29412, 35476, 18000], 1184),
}


def grown(samples: int, added: list[int]) -> WorkerGrowth:
    levels = [(samples, 50_000 * KIB)]
    for each in added:
        levels.append((levels[-1][0] + samples, levels[-1][1] + each * KIB))
    return WorkerGrowth(2, 32, tuple(levels))


@pytest.mark.parametrize("name", HEALTHY)
def test_memory_that_rises_and_falls_or_settles_is_no_growth(name: str) -> None:
    assert grown(*HEALTHY[name]).bytes_per_sample == 0


@pytest.mark.parametrize("name", GROWING)
def test_what_each_interval_adds_is_growth(name: str) -> None:
    samples, added, expected = GROWING[name]
    assert grown(samples, added).bytes_per_sample * 1000 / KIB == pytest.approx(expected, rel=0.01)


@pytest.fixture(scope="module")
def seen() -> Observation:
    return observed(held_outputs(True))


def test_growth_is_a_finding_with_bytes_per_step(seen: Observation) -> None:
    found = grown(1000, [1000] * 6)
    (finding,) = GrowingWorkers().find(with_what_if(seen, worker_growth=lambda: found))
    assert "2 workers of the loader grew by 1000 KiB of main memory per 1,000 samples" in finding.what
    assert finding.size is not None
    assert finding.size.host_bytes_per_step == 32 * 1024
    assert not finding.minor
    assert finding.evidence[0].endswith("rose in each of 6 intervals.")


def test_growth_that_a_training_does_not_feel_is_minor(seen: Observation) -> None:
    found = replace(grown(1000, [600] * 6), samples_per_step=1)
    assert [each.minor for each in GrowingWorkers().find(with_what_if(seen, worker_growth=lambda: found))] == [True]


def test_a_healthy_loader_has_no_finding(seen: Observation) -> None:
    found = grown(*HEALTHY["images, 2 workers"])
    bench = with_what_if(seen, worker_growth=lambda: found)
    assert GrowingWorkers().unchecked(bench) == ""
    assert list(GrowingWorkers().find(bench)) == []


class Pictures(Dataset[Any]):
    """Small pictures, some of which may be kept."""

    def __init__(self, samples: int = 100_000, *, keep: bool = False, names: Any = None) -> None:
        self.samples, self.keep, self.names = samples, keep, names
        self.kept = list[torch.Tensor]()

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, at: int) -> torch.Tensor:
        picture = torch.rand(3, random.randint(24, 32), 32)
        if self.keep:
            self.kept.append(picture)
        if self.names is not None:
            time.sleep(0.002)  # decoding: otherwise all names are copied before the first reading
            str(self.names[at])
        return F.interpolate(picture[None], size=(16, 16))[0]


def reading(data: Dataset[Any], **more: Any) -> WorkerGrowth | str:
    loader: DataLoader[Any] = DataLoader(data, **{"batch_size": 16, "num_workers": 1, **more})
    return worker_growth(source_of(loader, scan=2), 16)


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reads for about a second."""
    monkeypatch.setattr(loading, "STARTED_S", 0.3)
    monkeypatch.setattr(loading, "INTERVAL_S", 0.08)


@pytest.fixture
def linux_only() -> None:
    if isinstance(reading(Pictures()), str):
        pytest.skip("the memory of other processes cannot be read here")


@pytest.mark.usefixtures("briefly", "linux_only")
def test_a_data_set_that_keeps_its_samples_grows_and_one_that_does_not_does_not() -> None:
    found, healthy = reading(Pictures(keep=True)), reading(Pictures())
    assert isinstance(found, WorkerGrowth)
    assert isinstance(healthy, WorkerGrowth)
    assert found.bytes_per_sample == pytest.approx(3 * 28 * 32 * 4, rel=0.3)
    assert healthy.bytes_per_sample == 0


@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize(
    ("data", "more", "reason"),
    [
        (Pictures(), {"num_workers": 0}, "no worker processes"),
        (Pictures(), {"worker_init_fn": print}, "worker_init_fn"),
        (Pictures(samples=64), {}, "a pass over the data"),
    ],
)
def test_why_it_cannot_be_seen_is_said(data: Dataset[Any], more: dict[str, Any], reason: str) -> None:
    found = reading(data, **more)
    assert isinstance(found, str)
    assert reason in found


def test_a_machine_without_proc_is_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "kib_line", lambda path, key: None)
    assert "cannot be read on this machine" in str(reading(Pictures()))


@pytest.mark.usefixtures("briefly")
def test_workers_that_live_on_are_watched_in_the_next_pass() -> None:
    assert isinstance(reading(Pictures(samples=256), persistent_workers=True), WorkerGrowth)


class Broken(Pictures):
    def __getitem__(self, at: int) -> torch.Tensor:
        if torch.utils.data.get_worker_info() is not None:
            raise ValueError("no such picture")
        return super().__getitem__(at)


def test_a_data_set_that_fails_in_a_worker_is_a_reason() -> None:
    assert "ValueError" in str(reading(Broken()))


def diagnosed(data: Dataset[Any], **more: Any) -> Diagnosis:
    model = nn.Linear(768, 8)

    def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = model(batch.flatten(1)).square().mean()
        return out

    loader: DataLoader[Any] = DataLoader(data, batch_size=16, shuffle=True, num_workers=2, **more)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autofit.doctor.session.members", lambda: chosen([KIND]))
        return autofit.diagnose(model, loader, step_fn=loss)


@pytest.mark.usefixtures("briefly")
def test_a_diagnosis_leaves_the_users_loader_and_numbers_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    data, generator, ran = Pictures(), torch.Generator().manual_seed(3), list[Any]()
    real = autofit.diagnose

    def diagnose(*given: Any, **named: Any) -> Diagnosis:
        before = torch.get_rng_state().tolist(), generator.get_state().tolist(), random.getstate()
        found = real(*given, **named)
        ran.append((torch.get_rng_state().tolist(), generator.get_state().tolist(), random.getstate()) == before)
        return found

    monkeypatch.setattr(autofit, "diagnose", diagnose)
    found = diagnosed(data, generator=generator)
    assert (ran, found.checked, data.kept) == ([True], (KIND,), [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("names", "count"),
    [
        (lambda: [{"name": f"{at}", "box": [at + 0.5, at + 1.5]} for at in range(200_000)], 1),
        (lambda: range(200_000), 0),
    ],
    ids=["dicts", "range"],
)
def test_annotations_as_python_objects_are_copied_by_each_worker(names: Callable[[], Any], count: int) -> None:
    """Copy on write, https://github.com/pytorch/pytorch/issues/13246."""
    assert len(of(diagnosed(Pictures(200_000, names=names())), KIND)) == count
