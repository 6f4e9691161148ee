"""`autofit export`: what it writes, and what it replaces."""

import json
from pathlib import Path

import pytest

from autofit import exporters, planfile
from autofit.cli import main
from tests.cli.conftest import FakeRemote, Run
from tests.conformance.test_exporters import OWN, recommendation


def test_defect_12_an_export_replaces_an_earlier_export_and_nothing_else(remote: type[FakeRemote], run: Run) -> None:
    run("tune", "t.py", "--study", ":memory:", "--trials", "3")
    Path("train.py").write_text("import torch\n")
    code, out, err = run("export", "-o", "train.py")
    assert (code, out) == (2, "")
    assert "found a file there that autofit did not export; expected" in err
    assert "--force" in err
    assert Path("train.py").read_text() == "import torch\n"
    assert run("export", "-o", "train.py", "--force")[0] == 0
    text = Path("train.py").read_text()
    assert text.startswith("# autofit plan: ")
    Path("train.py").chmod(0o600)
    assert run("export", "-o", "train.py")[0] == 0
    assert Path("train.py").read_text() == text
    assert Path("train.py").stat().st_mode & 0o777 == 0o600
    for path in (".", "missing/loop.py"):
        code, _, err = run("export", "-o", path, "--force")
        assert code == 2
        assert "Choose another path" in err
    assert sorted(path.name for path in Path().iterdir()) == ["autofit.yaml", "train.py"]


def test_how_a_trainer_differs_from_the_plan_is_said_on_the_terminal_and_as_json(
    remote: type[FakeRemote], run: Run
) -> None:
    found = recommendation(OWN.replace(accumulation_steps=2), settings={"weighing": "batch['labels'] != -100"})
    planfile.save(found, Path("autofit.yaml"))
    code, out, err = run("export", "--to", "deepspeed", "--json")
    (said,) = json.loads(out)["warnings"]
    assert "DeepSpeed weights those of a step alike" in said
    assert (code, err) == (0, f"autofit: {said}\n")


def test_the_help_names_the_formats(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["export", "--help"])
    named = " ".join(capsys.readouterr().out.split())
    listed = named.partition("export format: ")[2].partition(" or one that another package adds")[0].split(", ")
    assert [name.strip(",") for name in listed] == [exporter.name for exporter in exporters.BUILT_IN]
