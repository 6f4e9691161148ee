"""The plan file: what is written can be read by people and by `load`; what is not a plan is refused with words."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autofit import planfile
from autofit.core.answer import Answer, Candidate, Ratio
from autofit.core.budget import Budget
from autofit.core.environment import Environment
from autofit.core.errors import PlanFileError
from autofit.core.measurement import Measurement, Memory
from autofit.core.objective import Objective
from autofit.core.outcome import Outcome, Status
from autofit.core.plan import Plan
from autofit.core.space import Refusal
from scripts.schemas import of_plan

OWN = Plan(values={"micro_batch_size": 8, "accumulation_steps": 4, "precision": "fp32", "fuse": False})
PROOF = Measurement(
    step_times_s=tuple(0.1 / (n + 3) for n in range(20)),
    samples_per_step=32,
    memory=Memory(allocated_bytes=2**30, judged_bytes=2**31, judged_by="footprint: reserved + context"),
    worst_steps=3,
    phases_s={"forward": 1e-5},
)
RECORD = Answer(
    plan=OWN.replace(micro_batch_size=32, accumulation_steps=1, precision="bf16", fuse=True),
    proof=PROOF,
    baseline=Candidate(plan=OWN, outcome=Outcome(status=Status.MEASURED, measurement=PROOF)),
    gain=Ratio(value=1.5, low=1.4, high=1.6, pairs=8),
    alternatives=(
        Candidate(plan=OWN, outcome=Outcome(status=Status.OUT_OF_MEMORY, reason="out\nof: memory # é"), note="no"),
    ),
    refused=(Refusal(name="precision=fp16", reason=""),),
    budget=Budget(memory_bytes=2**34),
    objective=Objective(),
    environment=Environment(
        workload="", device_type="cpu", device_name="chip", capacity_bytes=2**34, versions={"torch": "2.10"}
    ),
    study="s.db",
    counts={"out of memory": 1},
    created="2026-11-21T12:00:00+00:00",
)


def changed(path: Path, *keys: str, value: Any) -> Path:
    """Writes `RECORD` with the entry at `keys` changed, or taken away for `...`."""
    data = inner = yaml.safe_load(planfile.dumps(RECORD))
    for key in keys[:-1]:
        inner = inner[key]
    if value is ...:
        del inner[keys[-1]]
    else:
        inner[keys[-1]] = value
    path.write_text(yaml.safe_dump(data))
    return path


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    planfile.save(RECORD, tmp_path / "plan.yaml")
    loaded = planfile.load(str(tmp_path / "plan.yaml"))
    assert loaded == RECORD
    assert [type(value) for value in loaded.plan.values.values()] == [int, int, str, bool]
    assert list(loaded.plan.values) == list(RECORD.plan.values)


@given(
    text=st.text(max_size=40),
    number=st.floats(allow_nan=False),
    value=st.one_of(st.booleans(), st.integers(-(2**60), 2**60), st.text(max_size=10)),
)
@settings(max_examples=60, deadline=None)
def test_any_text_and_number_come_back(
    tmp_path_factory: pytest.TempPathFactory, text: str, number: float, value: bool | int | str
) -> None:
    record = RECORD.model_copy(
        update={
            "plan": RECORD.plan.replace(knob=value),
            "caveats": (text, text),
            "counts": {text: 1},
            "proof": PROOF.model_copy(update={"loss": number, "warnings": (text,)}),
            "baseline": Candidate(plan=OWN, outcome=Outcome(status=Status.CRASHED, reason=text or "no")),
        }
    )
    path = tmp_path_factory.getbasetemp() / "any.yaml"
    planfile.save(record, path)
    assert planfile.load(path) == record


def test_the_text_reads_well() -> None:
    lines = planfile.dumps(RECORD).splitlines()
    comments = [line for line in lines if line.startswith("#")]
    assert lines[: len(comments)] == comments
    assert "autofit tune" in comments[0]
    gain = "1.50x (1.40 to 1.60) the throughput of the baseline"
    assert comments[1] == f"# micro batch 32, precision=bf16, fuse=True: {gain}"
    assert lines[len(comments) : len(comments) + 4] == [
        "schema: autofit.plan/1", "plan:", "  values:", "    micro_batch_size: 32"
    ]  # fmt: skip
    assert max(map(len, lines)) <= 120
    text = "\n".join(lines)
    assert "step_times_s: [0.0333" in text  # numbers in a row, not one a line
    assert "null" not in text
    assert "warnings: []" not in text
    assert yaml.safe_load(text)["schema"] == "autofit.plan/1"  # any YAML reader reads it


def test_steps_timed_together_are_told_and_a_file_without_them_is_read_as_before(tmp_path: Path) -> None:
    windows = RECORD.model_copy(update={"proof": PROOF.model_copy(update={"steps_per_window": 12})})
    text = planfile.dumps(windows)
    assert text.count("steps_per_window: 12") == 1  # of the baseline each step was timed
    path = tmp_path / "autofit.yaml"
    path.write_text(text)
    assert planfile.load(path) == windows
    path.write_text(text.replace("  steps_per_window: 12\n", ""))
    assert planfile.load(path) == RECORD


def test_the_comment_has_the_baseline_on_the_scale_of_the_race() -> None:
    measurement = RECORD.proof
    own = Candidate(
        plan=RECORD.baseline.plan, outcome=Outcome(status=Status.MEASURED, measurement=measurement), rate_per_s=1234.5
    )
    text = planfile.dumps(RECORD.model_copy(update={"baseline": own}))
    assert ": 1,234 samples/s, peak" in text.splitlines()[2]


def test_a_reason_cannot_leave_the_comment() -> None:
    outcome = Outcome(status=Status.CRASHED, reason="gone\nschema: evil\x85plan:\u2028x: 1\r\x1b[31m")
    record = RECORD.model_copy(update={"baseline": Candidate(plan=OWN, outcome=outcome)})
    text = planfile.dumps(record)
    assert text.splitlines()[2].startswith("# baseline: micro batch")
    assert "gone schema: evil plan: x: 1" in text.split("\n")[2]
    assert "\x1b" not in text


def test_saving_replaces_an_earlier_plan_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    path.write_text("# mine\nschema: autofit.plan/1\nplan: damaged [\n")
    planfile.save(RECORD, path)
    planfile.save(RECORD.model_copy(update={"study": "other.db"}), path)
    assert planfile.load(path).study == "other.db"
    assert [file.name for file in tmp_path.iterdir()] == ["plan.yaml"]
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0o044 & ~_umask()


def test_a_loop_of_links_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "plan.yaml").symlink_to("plan.yaml")
    with pytest.raises(PlanFileError, match="was not written: Too many levels of symbolic links"):
        planfile.save(RECORD, tmp_path / "plan.yaml", force=True)
    assert (tmp_path / "plan.yaml").is_symlink()


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_a_link_is_kept(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "plan.yaml").symlink_to(tmp_path / "real" / "plan.yaml")
    planfile.save(RECORD, tmp_path / "plan.yaml")
    assert (tmp_path / "plan.yaml").is_symlink()
    assert planfile.load(tmp_path / "real" / "plan.yaml") == RECORD


@pytest.mark.parametrize("text", ["import torch\n", "model: x\n  schema: autofit.plan/1\n", "\x00\xff"])
def test_saving_refuses_to_overwrite_other_files(tmp_path: Path, text: str) -> None:
    path = tmp_path / "train.py"
    path.write_text(text)
    with pytest.raises(PlanFileError, match=r"train\.py was not written: found .* expected .* Choose another"):
        planfile.save(RECORD, path)
    assert path.read_text() == text


def test_saving_where_nothing_can_be_written(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "plan.yaml"):
        with pytest.raises(PlanFileError, match=r"was not written: .*; expected|found .*; expected"):
            planfile.save(RECORD, path)


def test_a_failed_save_keeps_the_earlier_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.yaml"
    planfile.save(RECORD, path)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(PlanFileError, match="No space left on device"):
        planfile.save(RECORD.model_copy(update={"study": "other.db"}), path)
    assert planfile.load(path) == RECORD
    assert [file.name for file in tmp_path.iterdir()] == ["plan.yaml"]


def test_of_more_alternatives_than_a_file_may_hold_the_front_and_the_first_are_saved(tmp_path: Path) -> None:
    """A search of 850 plans could not save its answer."""
    one = RECORD.alternatives[0].model_copy(update={"note": "n" * 900})
    others = [one.model_copy(update={"note": f"{at} {one.note}", "on_front": at % 500 == 499}) for at in range(2000)]
    planfile.save(RECORD.model_copy(update={"alternatives": tuple(others)}), tmp_path / "plan.yaml")
    kept = planfile.load(tmp_path / "plan.yaml")
    places = [int(each.note.split()[0]) for each in kept.alternatives]
    assert places == sorted(places)
    assert {499, 999, 1499, 1999} <= set(places)
    assert set(range(len(places) - 4)) <= set(places)
    assert len(places) > 200
    assert any(f"{2000 - len(places)} of 2000 alternatives are left out" in caveat for caveat in kept.caveats)


def test_what_could_not_be_loaded_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(PlanFileError, match="without alternatives"):
        planfile.save(RECORD.model_copy(update={"caveats": ("x" * planfile.MAX_BYTES,)}), tmp_path / "plan.yaml")
    assert list(tmp_path.iterdir()) == []


def test_missing_files_and_directories(tmp_path: Path) -> None:
    for path, found in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "Is a directory")):
        with pytest.raises(PlanFileError, match=rf": {found}.*; expected .* Check the path"):
            planfile.load(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "found nothing"),
        ("- a\n- b\n", "found a list"),
        ("plan\n", "found a str"),
        ("a: [1,\nb: }\n", "not readable as YAML in line 2"),
        ("plan: {}\n", "found no `schema`"),
        (
            "schema: autofit.plan/2\n",
            "found schema autofit.plan/2, written by a newer autofit; expected autofit.plan/1.",
        ),
        ("schema: autofit.study/1\n", "found schema 'autofit.study/1'"),
        ("schema: [1]\n", "found schema [1]"),
        ("schema: autofit.plan/1\nschema: autofit.plan/1\n", "in line 2: found the key 'schema' twice"),
        ("a: {b: 1, b: 2}\n", "found the key 'b' twice"),
        ("a: &x [1]\nb: [*x, *x]\n", "found an alias"),
        ("a: &x [*x]\n", "found an alias"),
        ("a: !!python/object/apply:os.system [echo]\n", "found the tag 'tag:yaml.or"),
        ("a: !secret 1\n", "found the tag '!secret'; expected plain values"),
        ("a: 1\n---\nb: 2\n", "found another document"),
        ("a: " + "9" * 5000, "found a number of 5000 digits"),
        ("? [a]\n: b\n", "found a list or a mapping as a key"),
        ("schema: autofit.plan/0\n", "found schema 'autofit.plan/0'; expected autofit.plan/1"),
        ("schema: autofit.plan/" + "9" * 5000 + "\n", "; expected autofit.plan/1"),
        ('"' + "k" * 900 + '": 1\n"' + "k" * 900 + '": 1\n', "twice"),
        ("[" * 20000, "not readable as YAML"),
        ("x" * (planfile.MAX_BYTES + 1), "more than 1048576 bytes"),
        (b"a: \xff\xfe\n", "not UTF-8"),
        ("a: \x07\n", "not readable as YAML"),
    ],
)
def test_damaged_and_hostile_files(tmp_path: Path, text: str | bytes, words: str) -> None:
    path = tmp_path / "plan.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(PlanFileError) as caught:
        planfile.load(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.parametrize(
    ("keys", "value", "words"),
    [
        (("extra",), 1, "extra: found 1; expected: Extra inputs are not permitted"),
        (("proof", "memory", "speed"), 1, "proof.memory.speed: found 1"),
        (("proof",), 3, "proof: found 3; expected:"),
        (("proof", "step_times_s"), ["fast"], "proof.step_times_s.0: found 'fast'; expected:"),
        (("proof", "step_times_s"), [], "proof.step_times_s: found []"),
        (("plan", "values", "precision"), [1], "plan.values.precision"),
        (("baseline", "outcome", "status"), "fine", "baseline.outcome.status: found 'fine'"),
        (("budget",), ..., "budget: found nothing; expected: Field required"),
        (("caveats",), ["x" * 9000, 3], "caveats.1: found 3"),
    ],
)
def test_records_that_say_something_else(tmp_path: Path, keys: tuple[str, ...], value: object, words: str) -> None:
    path = changed(tmp_path / "plan.yaml", *keys, value=value)
    with pytest.raises(PlanFileError) as caught:
        planfile.load(path)
    assert words in str(caught.value)
    assert "is not valid autofit.plan/1" in str(caught.value)


def test_the_plan_for_evaluation_is_read_and_checked_as_one(tmp_path: Path) -> None:
    evaluated = RECORD.model_copy(update={"evaluation": RECORD})
    path = tmp_path / "plan.yaml"
    planfile.save(evaluated, path)
    assert planfile.load(path) == evaluated
    assert "evaluation" not in planfile.dumps(RECORD)
    written = yaml.safe_load(planfile.dumps(evaluated))
    written["evaluation"]["plan"]["values"]["micro_batch_size"] = 0
    path.write_text(yaml.safe_dump(written))
    with pytest.raises(PlanFileError, match=r"evaluation\.plan\.values: found micro_batch_size: 0"):
        planfile.load(path)


def test_the_alternatives_of_evaluation_are_the_first_to_be_left_out(tmp_path: Path) -> None:
    many = RECORD.model_copy(update={"alternatives": RECORD.alternatives * 4000})
    planfile.save(RECORD.model_copy(update={"evaluation": many}), tmp_path / "plan.yaml")
    loaded = planfile.load(tmp_path / "plan.yaml")
    assert loaded.alternatives == RECORD.alternatives
    assert loaded.evaluation is not None
    assert loaded.evaluation.alternatives == ()
    assert "4000 of 4000 alternatives are left out" in loaded.evaluation.caveats[-1]


@pytest.mark.parametrize("value", [..., 0, True, "8", 1.5])
def test_a_micro_batch_is_a_whole_number(tmp_path: Path, value: object) -> None:
    path = changed(tmp_path / "plan.yaml", "baseline", "plan", "values", "micro_batch_size", value=value)
    with pytest.raises(PlanFileError, match="micro_batch_size"):
        planfile.load(path)


def test_what_an_editor_may_do_to_numbers_and_dates(tmp_path: Path) -> None:
    path = tmp_path / "plan.yaml"
    text = planfile.dumps(RECORD).replace("'2026-11-21T12:00:00+00:00'", "2026-11-21T12:00:00+00:00")
    path.write_text("\ufeff" + text.replace("1.0e-05", "1e-5"))  # YAML 1.1 reads 1e-5 as text
    assert planfile.load(path) == RECORD


def test_the_published_schema_describes_the_file() -> None:
    published = of_plan()
    assert published["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert "schema" in published["required"]
    data = yaml.safe_load(planfile.dumps(RECORD))
    assert set(published["required"]) <= data.keys() <= published["properties"].keys()
    assert published["additionalProperties"] is False


def test_torch_is_not_loaded(tmp_path: Path) -> None:
    planfile.save(RECORD, tmp_path / "plan.yaml")
    code = "import sys; from autofit import planfile; planfile.load(sys.argv[1]); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "plan.yaml")], check=True, cwd=Path(__file__).parents[1])
