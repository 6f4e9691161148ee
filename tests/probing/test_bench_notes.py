"""The notes of a bench come from the workload, the loss, the device, the guard and the loader."""

from typing import Any

from autofit.devices.cpu import Cpu
from autofit.probing.local_bench import bench_notes
from autofit.workloads.loss import LossRule
from autofit.workloads.sources import source_of
from autofit.workloads.workload import Workload
from tests.probing import targets


class Caveated(Cpu):
    """A device with a note."""

    is_host = False

    def caveats(self) -> tuple[str, ...]:
        return ("a note of the device",)


def notes(inferred: bool = True, **changes: Any) -> list[str]:
    workload = targets.make_mlp(**changes)
    source, loss = source_of(workload.loader), LossRule("loss", lambda model, batch: batch, inferred, "by rule 4")
    return list(bench_notes(workload, Caveated(), loss, ["0.norm"], ["a note of the guard"], source))


def test_what_was_assumed_comes_before_what_cannot_be_restored() -> None:
    found = notes()
    assert found[0] == "the loss was inferred: by rule 4"
    assert found[1].startswith("found 0.norm in evaluation mode in a model")
    assert "override train()" in found[1]
    assert found[2].startswith("no optimizer was given")
    assert found[3:] == ["a note of the guard", "a note of the device"]


def test_what_the_user_gave_is_not_noted() -> None:
    assert not any("optimizer" in note for note in notes(mode="inference"))
    assert not any("inferred" in note for note in notes(inferred=False))
    assert Workload(targets.mlp(), targets.vectors()).training
