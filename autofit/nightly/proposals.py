"""Proposals: a better plan is written beside the accepted one; it replaces that at once, or once a person accepts it.

Beside `plan.yaml` there are `plan.new.yaml`, the proposal, `plan.new.txt`, how it differs from the accepted plan, and
`plan.previous.yaml`, the predecessor of the accepted plan.
"""

from contextlib import suppress
from pathlib import Path

from autofit import planfile
from autofit.core.errors import PlanFileError
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.printable import printable
from autofit.core.recommendation import Ratio, Recommendation
from autofit.core.units import format_bytes, short_number
from autofit.files import write_atomically
from autofit.reports.tables import Column, table

_MARK = b"Proposed instead of"
"""Beginning of the file with the difference."""
_WIDTH = 100


def new_path(plan: Path) -> Path:
    """Returns where the proposal for an accepted plan is: `plan.new.yaml` for `plan.yaml`."""
    return plan.with_name(f"{plan.stem}.new{plan.suffix}")


def previous_path(plan: Path) -> Path:
    """Returns where the predecessor of an accepted plan is: `plan.previous.yaml` for `plan.yaml`."""
    return plan.with_name(f"{plan.stem}.previous{plan.suffix}")


def difference_path(plan: Path) -> Path:
    """Returns where the difference between proposal and accepted plan is, as text: `plan.new.txt` for `plan.yaml`."""
    return plan.with_name(f"{plan.stem}.new.txt")


def propose(found: Recommendation, plan: Path, accepted: Recommendation, gain: Ratio | None) -> None:
    """Writes a proposal and its difference beside the accepted plan. An earlier proposal is replaced.

    Args:
        found: the proposal.
        plan: path of the accepted plan.
        accepted: the accepted plan.
        gain: throughput of the proposal over the accepted plan; None if the accepted plan does not run.

    Raises:
        PlanFileError: other files have the names of the proposal or of its difference, or it cannot be written.
    """
    beside = difference_path(plan)
    if beside.exists() and not (beside.is_file() and beside.read_bytes().startswith(_MARK)):
        raise PlanFileError(
            f"the proposal was not written: found {beside}, which autofit did not write; expected no file, or "
            "the difference of an earlier proposal. Move it away."
        )
    planfile.save(found, new_path(plan))
    text = difference(accepted, found, gain)
    _write(beside, _MARK + f" {plan.name}.\n\n{text}\n".encode())


def withdraw(plan: Path) -> bool:
    """Deletes the proposal for an accepted plan, which a later search has overtaken. Returns whether there was one."""
    found = new_path(plan).exists()
    for path in (new_path(plan), difference_path(plan)):
        with suppress(OSError):
            path.unlink()
    return found


def replace(found: Recommendation, plan: Path) -> None:
    """Makes `found` the accepted plan, atomically. Its predecessor is kept.

    Raises:
        PlanFileError: the path is not a plan file, or cannot be written.
    """
    plan.parent.mkdir(parents=True, exist_ok=True)
    _keep(plan)
    planfile.save(found, plan)


def accept(plan: Path) -> str:
    """Makes the proposal the accepted plan, atomically, and returns what changed. Its predecessor is kept.

    Raises:
        PlanFileError: there is no proposal, it or the accepted plan is damaged, or a file cannot be written.
    """
    source = new_path(plan)
    if not source.exists():
        raise PlanFileError(
            f"found no proposal for {plan}; expected {source}, which `autofit nightly` writes when it finds a better "
            "plan. Run a night first."
        )
    found = planfile.load(source)
    changed = _changed(plan, found)
    _keep(plan)
    _write(planfile.check_replaceable(plan), source.read_bytes())
    withdraw(plan)
    return changed


def revert(plan: Path) -> str:
    """Exchanges the accepted plan and its predecessor, and returns what changed. A second call undoes the first.

    Raises:
        PlanFileError: there is no predecessor, it is damaged, or a file cannot be written.
    """
    source = previous_path(plan)
    if not source.exists():
        raise PlanFileError(
            f"found no predecessor of {plan}; expected {source}, which is kept when a proposal is accepted. "
            "Nothing was changed."
        )
    found = planfile.load(source)
    changed = _changed(plan, found)
    data = source.read_bytes()
    target = planfile.check_replaceable(plan)
    if not target.exists():
        _write(target, data)
        return changed
    kept = plan.with_name(f"{plan.stem}.reverted{plan.suffix}")  # so that neither plan is lost if this process dies
    if not (kept.exists() and target.read_bytes() == data):  # else the last call died here
        _write(planfile.check_replaceable(kept), target.read_bytes())
        _write(target, data)
    kept.replace(planfile.check_replaceable(source))
    return changed


def difference(accepted: Recommendation | None, found: Recommendation, gain: Ratio | None, width: int = _WIDTH) -> str:
    """Returns how a plan differs from the accepted one: knobs, throughput and peak, as a table.

    Throughputs of two searches are not on one scale, so the ratio alone compares them.

    Args:
        accepted: the accepted plan; None if there is none.
        found: the other plan.
        gain: throughput of `found` over the accepted plan; None if unknown.
        width: cells of a line.
    """
    unit = found.objective.unit
    before = Plan() if accepted is None else accepted.plan
    names = [MICRO_BATCH_SIZE, ACCUMULATION_STEPS, *sorted({*before.values, *found.plan.values})]
    rows = [(name, _value(before, name), _value(found.plan, name), "") for name in dict.fromkeys(names)]
    rows = [row for row in rows if row[1] != row[2]]
    old = ("", "") if accepted is None else (_rate(accepted), format_bytes(accepted.proof.memory.judged_bytes))
    rows.append((f"{unit}/s when tuned", old[0], _rate(found), "" if gain is None else f"{gain} side by side"))
    rows.append(("peak memory", old[1], format_bytes(found.proof.memory.judged_bytes), ""))
    titles, olds, news, notes = (list(column) for column in zip(*rows, strict=True))
    columns = [Column("accepted", olds, right=True), Column("proposed", news, right=True), Column("", notes)]
    return printable("\n".join(table([Column("What changes", titles), *columns], width)))


def _value(plan: Plan, name: str) -> str:
    return str(plan.values.get(name, ""))


def _rate(found: Recommendation) -> str:
    rate = found.objective.score(found.proof) if found.rate_per_s is None else found.rate_per_s
    return short_number(rate)


def _changed(plan: Path, found: Recommendation) -> str:
    """Returns how `found` differs from the accepted plan, if that can be read."""
    try:
        accepted = planfile.load(plan) if plan.exists() else None
    except PlanFileError:
        accepted = None
    return difference(accepted, found, None)


def _keep(plan: Path) -> None:
    """Copies the accepted plan, if there is one, to where its predecessor is kept."""
    target = planfile.check_replaceable(plan)
    if target.exists():
        _write(planfile.check_replaceable(previous_path(plan)), target.read_bytes())


def _write(target: Path, data: bytes) -> None:
    try:
        write_atomically(target, data)
    except OSError as error:
        raise PlanFileError(
            f"{target} could not be written: {error.strerror or error}; expected a directory that exists and "
            "has space. Nothing was lost: the accepted plan is unchanged. Free space, or correct the permissions."
        ) from None
