"""The verdicts of gates are kept in the study; a later search of the unchanged workload does not run them again."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import autofit
from autofit.fit import Fit
from autofit.probing.survey import gates
from autofit.search.kept_gates import kept_gates
from autofit.study import Study
from tests.probing import targets


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes each gate that runs."""
    names: list[str] = []
    for name in ("accumulation", "precision"):
        gate = getattr(gates, name)

        def noting(*args: Any, _gate: Any = gate, _name: str = name, **kwargs: Any) -> gates.GateResult:
            names.append(_name)
            found: gates.GateResult = _gate(*args, **kwargs)
            return found

        monkeypatch.setattr(gates, name, noting)
    return names


def tuned(study: str | Path, model: nn.Module | None = None, **options: Any) -> Fit:
    few: dict[str, Any] = {"strategies": ["batching"], "global_batch_size": 32, "pinned": {"micro_batch_size": 4}}
    asked = {"loss_fn": F.cross_entropy, "study": study, "progress": False, **few, **options}
    return autofit.tune(model or targets.mlp(), targets.vectors(), **asked)


def test_an_unchanged_workload_runs_no_gate_again(tmp_path: Path, ran: list[str]) -> None:
    study = tmp_path / "study.db"
    first = tuned(study)
    assert ran == ["accumulation"]
    again = tuned(study)
    assert ran == ["accumulation"]
    assert again.recommendation.environment == first.recommendation.environment


def test_also_for_another_question(tmp_path: Path, ran: list[str]) -> None:
    study = tmp_path / "study.db"
    tuned(study)
    tuned(study, memory_budget="1GiB")
    assert ran == ["accumulation"]


def test_another_model_is_checked_for_itself(tmp_path: Path, ran: list[str]) -> None:
    study = tmp_path / "study.db"
    tuned(study)
    tuned(study, nn.Sequential(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 4)))
    assert ran == ["accumulation"] * 2


def test_without_a_file_every_search_runs_its_gates(ran: list[str]) -> None:
    for _ in range(2):
        tuned(":memory:")
    assert ran == ["accumulation"] * 2


class Summed(nn.Module):
    """A loss whose gradient grows with the batch, so that the gate refuses accumulation."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layer(x) * x.mean()
        return output


def test_a_refusal_and_its_reason_are_kept_too(tmp_path: Path, ran: list[str]) -> None:
    study = tmp_path / "study.db"
    first, again = (tuned(study, Summed(), pinned={}) for _ in range(2))
    assert ran == ["accumulation"]
    refused = [refusal for refusal in again.recommendation.refused if refusal.name == "accumulation"]
    assert refused
    assert refused == [refusal for refusal in first.recommendation.refused if refusal.name == "accumulation"]


class Counting(nn.Module):
    """A model that counts its calls in a plain attribute, which is then not part of the environment."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(8, 4)
        self.notes = {"calls": 0}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.notes["calls"] += 1
        output: torch.Tensor = self.layer(x)
        return output


def test_where_steps_change_what_the_workload_reaches_gates_run_and_the_environment_stays(
    tmp_path: Path, ran: list[str]
) -> None:
    study = tmp_path / "study.db"
    first, again = (tuned(study, Counting()) for _ in range(2))
    assert ran == ["accumulation"] * 2
    assert again.recommendation.environment == first.recommendation.environment


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    study = tmp_path / "study.db"
    assert kept_gates(study) == ()
    study.write_text("not a database")
    assert kept_gates(study) == ()
    assert kept_gates("postgresql+nodriver://nowhere/nothing") == ()
    study.unlink()
    tuned(study)
    (kept,) = kept_gates(study)
    assert kept.found["accumulation"].passed


def test_a_note_of_another_version_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study, note = tmp_path / "study.db", Study.note

    def noting(self: Study, name: str, value: dict[str, object]) -> None:
        note(self, name, value | {"of_a_newer_version": 1} if name == "gates" else value)

    monkeypatch.setattr(Study, "note", noting)
    tuned(study)
    assert kept_gates(study) == ()
