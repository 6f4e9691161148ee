"""The demo of 20 nights: it finds what it plants, and says so if it does not."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from autofit.nightly.records import NightRecord, VerdictKind
from scripts.nightly_demo import __main__ as demo

pytestmark = pytest.mark.slow

Played = Mapping[str, Sequence[NightRecord]]


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    _, history = demo.play(tmp_path_factory.mktemp("nights"))
    return history


def test_what_is_planted_is_found_and_nothing_else(played: Played) -> None:
    assert [len(records) for records in played.values()] == [demo.NIGHTS] * 4
    assert demo.mistakes(played) == []


def test_a_regression_that_is_missed_or_not_planted_is_a_mistake(played: Played) -> None:
    missed = demo.mistakes({**played, "gpt": played["unet"]})
    assert missed == ["gpt: the regression was not found by night 14, but in none"]
    record = played["unet"][9]
    alarm = record.model_copy(update={"verdict": record.verdict.model_copy(update={"kind": VerdictKind.REGRESSION})})
    wrong = demo.mistakes({**played, "unet": [*played["unet"][:9], alarm, *played["unet"][10:]]})
    assert wrong == ["unet: a regression was reported in night 10, where none was planted"]
    assert demo.mistakes({**played, "resnet": played["unet"]}) == [
        "resnet: night 10 does not name the driver that changed"
    ]


def test_the_command_prints_the_verdicts_and_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, played: Played
) -> None:
    monkeypatch.setattr(demo, "NIGHTS", 1)
    monkeypatch.setattr(demo, "mistakes", lambda history: [])
    page = tmp_path / "nightly.html"
    assert demo.main(["-o", str(page)]) == 0
    assert "encoder: 1 % more memory each night" in capsys.readouterr().out
    assert "<!DOCTYPE html>" in page.read_text()
