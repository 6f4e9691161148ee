"""Verdicts: each value is compared once, kept in the study, and a refused value speaks against every plan with it."""

from collections.abc import Mapping

from autofit.core.plan import Plan
from autofit.core.space import Refusal
from autofit.gates.verdict import Checked, GateVerdict
from autofit.search.answers import VERDICTS, Checks
from autofit.search.ledger import Ledger
from tests.fakes import FakeBench, MemoryLog, tuning_of
from tests.search.listed import at, calm


class Gate:
    """Passes all values but one, and notes what it was asked."""

    def __init__(self, bench: FakeBench, refused: str = "precision=bf16") -> None:
        self.bench, self.refused = bench, refused
        self.asked: list[Plan] = []

    def __call__(self, plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        """Returns a verdict on each value that is not known."""
        self.asked.append(plan)
        self.bench.time.advance(6.0)
        changed = plan.combination.changes_from(self.bench.space.baseline.combination)
        names = [f"{name}={value}" for name, value in changed.items()] + ["batch_size"]
        verdicts = {n: GateVerdict(passed=n != self.refused, reason="far") for n in names if n not in known}
        bad = self.refused in names
        refused = (Refusal(name=self.refused, reason="far", origin="gate"),) if bad else ()
        reason = f"{self.refused}: far" if bad else ""
        return Checked(passed=not bad, reason=reason, verdicts=verdicts, refused=refused, caveats=("noted",))


def checks_of(bench: FakeBench, gate: Gate, log: MemoryLog, checked_as: str = "x") -> tuple[Checks, Ledger]:
    tuning = tuning_of(bench, log, check=gate, checked_as=checked_as)
    ledger = Ledger(tuning)
    return Checks(tuning, ledger), ledger


def test_a_plan_is_checked_once_and_its_cost_is_learnt() -> None:
    bench = calm()
    gate, plan = Gate(bench), at(bench, 16, precision="tf32")
    checks, ledger = checks_of(bench, gate, MemoryLog())
    assert checks.is_due(plan)
    assert checks.passes(plan).passed
    assert checks.passes(plan).passed
    assert gate.asked == [plan]
    assert not checks.is_due(plan)
    assert not checks.is_due(at(bench, 32, precision="tf32")), "both of its values are known"
    assert ledger.check_s() == 6.0
    assert checks.caveats(plan) == ["noted"]


def test_the_baseline_needs_no_check() -> None:
    bench = calm()
    gate = Gate(bench)
    checks, _ = checks_of(bench, gate, MemoryLog())
    assert not checks.is_due(bench.space.baseline)
    assert checks.passes(bench.space.baseline).passed
    assert gate.asked == []


def test_a_refused_value_speaks_against_every_plan_with_it() -> None:
    bench = calm()
    checks, _ = checks_of(bench, Gate(bench), MemoryLog())
    assert checks.refusal(at(bench, 32, precision="bf16")) == ""
    assert not checks.passes(at(bench, 16, precision="bf16")).passed
    assert checks.refusal(at(bench, 32, precision="bf16", optimizer="fused")) == "precision=bf16: far"
    assert checks.refusal(at(bench, 32)) == ""
    assert [refusal.name for refusal in checks.refused] == ["precision=bf16"]


def test_verdicts_are_known_in_the_next_run_of_the_same_workload_only() -> None:
    bench, log = calm(), MemoryLog()
    first, _ = checks_of(bench, Gate(bench), log)
    first.passes(at(bench, 16, precision="bf16"))
    assert VERDICTS in log.notes
    again, _ = checks_of(bench, Gate(bench), log)
    assert again.known == first.known
    assert again.refusal(at(bench, 32, precision="bf16"))
    other, _ = checks_of(bench, Gate(bench), log, checked_as="y")
    assert other.known == {}
    assert other.refusal(at(bench, 32, precision="bf16")) == ""


def test_a_value_that_failed_and_is_not_refused_is_allowed() -> None:
    bench = calm()

    def lenient(plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        return Checked(verdicts={"precision=bf16": GateVerdict(passed=False, reason="far", weighing="1")})

    tuning = tuning_of(bench, check=lenient)
    checks = Checks(tuning, Ledger(tuning))
    assert checks.passes(at(bench, 8, precision="bf16")).passed
    assert checks.allowed == ("precision=bf16",)
    assert checks.weighing == ""


def test_a_value_on_which_nothing_can_decide_leaves_this_search_and_is_compared_in_the_next() -> None:
    bench, log = calm(), MemoryLog()
    undecided = Refusal(name="precision=bf16", reason="the gradient is zero on this batch", origin="gate")

    def gate(plan: Plan, known: Mapping[str, GateVerdict]) -> Checked:
        found = {"batch_size": GateVerdict(passed=True, reason="same")}
        return Checked(passed=False, checked=False, reason="zero", verdicts=found, refused=(undecided,))

    def checks() -> Checks:
        tuning = tuning_of(bench, log, check=gate, checked_as="x")
        return Checks(tuning, Ledger(tuning))

    first = checks()
    assert not first.passes(at(bench, 16, precision="bf16")).passed
    assert first.refused == [undecided]
    assert first.refusal(at(bench, 32, precision="bf16")) == "precision=bf16: the gradient is zero on this batch"
    assert first.refusal(at(bench, 32)) == ""
    assert (checks().refused, set(checks().known)) == ([], {"batch_size"})
