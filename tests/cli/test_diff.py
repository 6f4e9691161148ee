"""`autofit diff`: compares two plan files as text, JSON and a page."""

import json
from pathlib import Path

import yaml

from tests.cli.conftest import FakeRemote, Run


def plans(run: Run) -> None:
    """Writes autofit.yaml, and other.yaml with half its throughput."""
    run("tune", "t.py", "--study", ":memory:", "--trials", "3")
    data = yaml.safe_load(Path("autofit.yaml").read_text())
    data["rate_per_s"] /= 2
    Path("other.yaml").write_text(yaml.safe_dump(data))


def test_the_second_file_is_compared_with_the_first(remote: type[FakeRemote], run: Run) -> None:
    plans(run)
    code, out, err = run("diff", "autofit.yaml", "other.yaml")
    assert (code, err) == (0, "")
    assert out.startswith("The plans are the same. The second ran at 0.50x of the first one's throughput")
    assert "-50%" in out
    code, out, _ = run("diff", "other.yaml", "autofit.yaml", "--json")
    found = json.loads(out)
    assert (code, "2.00x" in found["verdict"]) == (0, True)
    assert found["differences"][0]["change"] == "+100%"


def test_a_page_is_written_and_replaced_but_no_other_file(remote: type[FakeRemote], run: Run) -> None:
    plans(run)
    for _ in range(2):
        assert run("diff", "autofit.yaml", "other.yaml", "-o", "diff.html") == (
            0, "", "autofit: differences written to diff.html\n"
        )  # fmt: skip
    assert "<title>autofit.yaml and other.yaml – autofit diff</title>" in Path("diff.html").read_text()
    before = Path("other.yaml").read_text()
    code, out, err = run("diff", "autofit.yaml", "other.yaml", "-o", "other.yaml")
    assert (code, out) == (2, "")
    assert "not an autofit report" in err.replace("\n", " ")
    assert Path("other.yaml").read_text() == before


def test_a_file_that_is_missing_or_no_plan_is_named(remote: type[FakeRemote], run: Run) -> None:
    plans(run)
    Path("broken.yaml").write_text("plan: 3")
    for name in ("missing.yaml", "broken.yaml"):
        code, out, err = run("diff", "autofit.yaml", name)
        assert (code, out) == (2, "")
        assert name in err


def test_control_sequences_of_a_strangers_file_do_not_reach_the_terminal(remote: type[FakeRemote], run: Run) -> None:
    plans(run)
    data = yaml.safe_load(Path("other.yaml").read_text())
    data["environment"]["settings"] = {"allocator": "\x1b]0;title\x07\x9b2J"}
    Path("other.yaml").write_text(yaml.safe_dump(data))
    code, out, err = run("diff", "autofit.yaml", "other.yaml")
    assert code == 0
    assert "allocator" in out
    assert not {"\x1b", "\x07", "\x9b"} & set(out + err)
