"""What makes the host wait, and what is emptied in each step."""

import gc

from autofit.core.account import Account
from autofit.doctor.findings.waits import EmptyCache, Sync
from autofit.doctor.sites import Site
from autofit.doctor.waits import PAGEABLE
from tests.doctor.cases import Case, held_outputs, observed


def test_waits_of_each_step_are_found_with_their_line_and_rare_ones_are_not() -> None:
    seen = observed(held_outputs(True), Account(allocator="caching"))
    steps = len(seen.watch.levels)
    seen.watch.waits.update({("a value is read", Site("train.py:3")): 2 * steps, (PAGEABLE, Site("train.py:1")): steps})
    seen.watch.waits.update({("a value is read", Site("train.py:9")): 1})
    often, copied = Sync().find(seen)
    assert "train.py:3 (2 times)" in often.what
    assert copied.places[0].line == "train.py:1"
    assert "pin_memory=True" in copied.remedy


def test_nothing_waits_where_the_cpu_computes() -> None:
    seen = observed(held_outputs(True))
    assert seen.watch.waits == {}
    assert Sync().skipped(seen)


def cleaning(good: bool) -> Case:
    case = held_outputs(True)

    def step() -> None:
        case.step()
        if not good:
            gc.collect()

    return Case(case.model, step)


def test_a_collection_in_each_step_is_found() -> None:
    (found,) = EmptyCache().find(observed(cleaning(False)))
    assert "gc.collect()" in found.what
    assert "test_waits.py" in found.places[0].line
    assert list(EmptyCache().find(observed(cleaning(True)))) == []
