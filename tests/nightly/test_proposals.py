"""Proposals: files beside the accepted plan, replaced at once or by hand; never a file that is not a plan."""

import os
from pathlib import Path

import pytest

from autofit import planfile
from autofit.core.errors import PlanFileError
from autofit.core.recommendation import Ratio
from autofit.nightly import proposals
from tests.nightly.benches import calm, faster, recommended

BENCH = calm()
OLD = recommended(BENCH, BENCH.space.baseline)
NEW = recommended(BENCH, faster(BENCH), title="new")


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    path = tmp_path / "plan.yaml"
    planfile.save(OLD, path)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_proposal_stands_beside_the_accepted_plan_with_its_difference(plan: Path) -> None:
    before = plan.read_bytes()
    proposals.propose(NEW, plan, OLD, Ratio(value=1.5, low=1.4, high=1.6, pairs=6))
    proposals.propose(NEW, plan, OLD, Ratio(value=1.5, low=1.4, high=1.6, pairs=6))  # an earlier one is replaced
    assert names(plan.parent) == ["plan.new.txt", "plan.new.yaml", "plan.yaml"]
    assert plan.read_bytes() == before
    assert planfile.load(proposals.new_path(plan)) == NEW
    text = proposals.difference_path(plan).read_text()
    lines = [" ".join(line.split()) for line in text.splitlines()]
    assert lines[0] == "Proposed instead of plan.yaml."
    assert "precision float32 bf16" in lines
    assert "optimizer own fused" in lines
    assert not any(line.startswith("micro_batch_size") for line in lines)
    assert any("samples/s when tuned" in line and line.endswith("1.50x (1.40 to 1.60) side by side") for line in lines)
    assert any(line.startswith("peak memory ") for line in lines)


def test_accepting_keeps_the_predecessor_and_reverting_exchanges_the_two(plan: Path) -> None:
    proposals.propose(NEW, plan, OLD, None)
    changed = proposals.accept(plan)
    assert "bf16" in changed
    assert names(plan.parent) == ["plan.previous.yaml", "plan.yaml"]
    assert (planfile.load(plan), planfile.load(proposals.previous_path(plan))) == (NEW, OLD)
    proposals.revert(plan)
    assert (planfile.load(plan), planfile.load(proposals.previous_path(plan))) == (OLD, NEW)
    proposals.revert(plan)
    assert planfile.load(plan) == NEW
    assert names(plan.parent) == ["plan.previous.yaml", "plan.yaml"]


def test_replacing_at_once_keeps_the_predecessor_and_makes_the_folder_of_a_first_plan(plan: Path) -> None:
    proposals.replace(NEW, plan)
    assert (planfile.load(plan), planfile.load(proposals.previous_path(plan))) == (NEW, OLD)
    first = plan.parent / "plans" / "gpt.yaml"
    proposals.replace(NEW, first)
    assert names(first.parent) == ["gpt.yaml"]


def test_a_proposal_that_was_overtaken_is_withdrawn_with_its_difference(plan: Path) -> None:
    assert not proposals.withdraw(plan)
    proposals.propose(NEW, plan, OLD, None)
    assert proposals.withdraw(plan)
    assert names(plan.parent) == ["plan.yaml"]
    assert planfile.load(plan) == OLD


def test_a_link_to_the_plan_stays_a_link(plan: Path) -> None:
    real = plan.rename(plan.with_name("v1.yaml"))
    plan.symlink_to(real.name)
    proposals.propose(NEW, plan, OLD, None)
    proposals.accept(plan)
    assert plan.is_symlink()
    assert planfile.load(real) == NEW
    proposals.revert(plan)
    assert plan.is_symlink()
    assert planfile.load(real) == OLD


@pytest.mark.parametrize("name", ["plan.new.yaml", "plan.new.txt", "plan.previous.yaml", "plan.yaml"])
def test_a_file_that_is_not_a_plan_is_never_replaced(name: str, plan: Path) -> None:
    other = plan.with_name(name)
    other.write_text("users: data\n")
    with pytest.raises(PlanFileError, match=r"not an autofit plan|autofit did not write"):
        proposals.propose(NEW, plan, OLD, None) if ".new." in name else proposals.replace(NEW, plan)
    assert other.read_text() == "users: data\n"


def test_nothing_to_accept_or_to_revert_is_an_error_and_so_is_a_damaged_proposal(plan: Path) -> None:
    with pytest.raises(PlanFileError, match=r"found no proposal .* expected .*plan\.new\.yaml"):
        proposals.accept(plan)
    with pytest.raises(PlanFileError, match=r"found no predecessor .* expected .*plan\.previous\.yaml"):
        proposals.revert(plan)
    proposals.new_path(plan).write_text("schema: autofit.plan/1\nplan: 3\n")
    with pytest.raises(PlanFileError, match=r"plan\.new\.yaml is not valid"):
        proposals.accept(plan)
    assert planfile.load(plan) == OLD


def test_a_damaged_accepted_plan_can_be_replaced_by_its_proposal(plan: Path) -> None:
    planfile.save(NEW, proposals.new_path(plan))
    plan.write_text("schema: autofit.plan/1\ndamaged\n")
    proposals.accept(plan)
    assert planfile.load(plan) == NEW
    assert "damaged" in proposals.previous_path(plan).read_text()


def test_a_revert_that_died_in_the_middle_is_finished_by_the_next(plan: Path) -> None:
    proposals.replace(NEW, plan)
    replace, left = Path.replace, [1]

    def dies(self: Path, target: Path) -> Path:
        if self.name == "plan.reverted.yaml" and left.pop():
            raise KeyboardInterrupt
        return replace(self, target)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "replace", dies)
        with pytest.raises(KeyboardInterrupt):
            proposals.revert(plan)
    assert planfile.load(plan) == OLD
    assert planfile.load(plan.with_name("plan.reverted.yaml")) == NEW
    proposals.revert(plan)
    assert (planfile.load(plan), planfile.load(proposals.previous_path(plan))) == (OLD, NEW)
    assert names(plan.parent) == ["plan.previous.yaml", "plan.yaml"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_is_an_error_and_the_plan_is_unchanged(plan: Path) -> None:
    proposals.propose(NEW, plan, OLD, None)
    plan.parent.chmod(0o500)
    try:
        with pytest.raises(PlanFileError, match="could not be written"):
            proposals.accept(plan)
    finally:
        plan.parent.chmod(0o700)
    assert planfile.load(plan) == OLD


def test_without_an_accepted_plan_the_difference_shows_the_new_one() -> None:
    text = proposals.difference(None, NEW, None)
    assert "bf16" in text
    assert "side by side" not in text
