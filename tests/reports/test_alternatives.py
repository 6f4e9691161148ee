"""The table of other plans: the fastest, those that save more memory than they cost speed, and why they lost."""

import re
from typing import Any

from autofit.core.answer import Answer, Candidate, Ratio
from autofit.core.plan import Plan
from autofit.reports.alternatives import others, rate_per_s, reasons_of, recommended, why
from tests.reports.test_summary import BEST, OWN, measured, measurement, record

PROOF = measurement(samples_per_s=100, peak_bytes=10 * 2**20)


def lines(width: int = 100, **changes: Any) -> list[str]:
    return others(record(**changes), width, "a.yaml")


def on_front(size: int, speed: float, peak: int, gain: float | None = None) -> Candidate:
    return Candidate(
        plan=BEST.replace(micro_batch_size=size),
        outcome=measured(samples_per_s=speed, peak_bytes=peak * 2**20),
        gain=None if gain is None else Ratio(value=gain, low=gain, high=gain, pairs=8),
        note=f"note {size}",
        on_front=True,
    )


def sizes(found: list[str], ending: str = "") -> list[int]:
    return [int(line.split()[2].rstrip(",")) for line in found if line.startswith("  micro") and line.endswith(ending)]


def test_the_best_five_are_shown_and_the_others_counted() -> None:
    beside = tuple(
        Candidate(plan=BEST.replace(micro_batch_size=size), outcome=measured(), note=f"a tie with {size}")
        for size in (1, 2, 4, 8, 16, 64, 128)
    )
    found = lines(alternatives=beside)
    assert found[0] == "What else was tried               samples/s   peak"
    assert found[1] == "  micro batch 1, precision=bf16      52,380  3 MiB  a tie with 1"
    assert sizes(found) == [1, 2, 4, 8, 16]
    assert found[-1] == "  and 2 more in a.yaml"
    assert "more in" not in "".join(lines(alternatives=beside[:5]))
    assert lines() == []


def test_a_narrow_table_stacks_its_rows_and_keeps_every_figure_and_reason() -> None:
    candidate = on_front(1, 90, 12, 1.8).model_copy(
        update={"note": "a tie, decided by memory: 0.98x (0.95 to 1.01) of"}
    )
    assert lines(60, alternatives=(candidate,)) == [
        "What else was tried",
        "  micro batch 1, precision=bf16: a tie, decided by memory",
        "    vs baseline 1.80x (1.80 to 1.80), samples/s 1,710, peak",
        "    12 MiB",
    ]
    assert lines(40, alternatives=(candidate,)) == [
        "What else was tried",
        "  micro batch 1, precision=bf16: a tie,",
        "    decided by memory",
        "    vs baseline 1.80x (1.80 to 1.80),",
        "    samples/s 1,710, peak 12 MiB",
    ]


def test_plans_that_save_more_memory_than_they_cost_speed_are_lighter() -> None:
    worth, dear, heavy = on_front(1, 90, 8), on_front(2, 40, 5), on_front(4, 120, 20)
    beside = [
        Candidate(plan=BEST.replace(micro_batch_size=64 << n), outcome=measured(samples_per_s=100)) for n in range(6)
    ]
    found = lines(proof=PROOF, gain=None, alternatives=(heavy, *beside, worth, dear))
    assert sizes(found, "lighter") == [1]
    assert 4 in sizes(found)
    assert found[-1] == "  and 3 more in a.yaml"


def test_a_lighter_plan_keeps_the_reason_why_it_lost() -> None:
    slower = Ratio(value=0.9, low=0.88, high=0.92, pairs=12)
    note = f"{slower} of the recommended plan's throughput, in 12 paired blocks"
    light = on_front(1, 90, 8).model_copy(update={"note": note, "over_recommended": slower})
    r = record(proof=PROOF, gain=None, alternatives=(light,))
    assert reasons_of(r) == {light.plan.key: "slower, but lighter"}
    assert others(r, 100, None)[1].endswith("slower, but lighter")


def test_what_a_lighter_plan_costs_is_by_the_race_where_there_was_one() -> None:
    # By its probe it is half as fast, and too dear; raced it was nine tenths.
    probed = on_front(1, 50, 8, gain=1.0)
    raced = probed.model_copy(update={"rate_per_s": 180.0})
    assert sizes(lines(proof=PROOF, rate_per_s=200.0, alternatives=(raced,)), "lighter") == [1]
    assert sizes(lines(proof=PROOF, alternatives=(probed,)), "lighter") == []


def test_at_most_three_lighter_plans_are_shown() -> None:
    proof = measurement(samples_per_s=100, peak_bytes=100 * 2**20)
    light = tuple(on_front(size, 90 - size, 20 - size) for size in range(1, 6))
    found = lines(proof=proof, gain=None, alternatives=light)
    assert sizes(found, "lighter") == [1, 2, 3]
    assert sizes(found) == [1, 2, 3, 4, 5]


def test_b18_a_plan_of_the_same_memory_is_not_called_lighter() -> None:
    for peak_bytes, light in ((10 * 2**20 - 4096, []), (round(9.8 * 2**20), [1])):
        same = on_front(1, 100, 1).model_copy(update={"outcome": measured(samples_per_s=100, peak_bytes=peak_bytes)})
        found = lines(proof=PROOF, gain=None, alternatives=(same,))
        assert sizes(found, "lighter") == light
        assert sizes(found) == [1]


def test_the_reason_leaves_out_the_figures_of_the_table() -> None:
    ratio = "0.98x (0.95 to 1.01) of the recommended plan's throughput"
    cases = {
        f"a tie, decided by memory: {ratio}, in 12 paired blocks": "a tie, decided by memory",
        f"not raced; by its probe {ratio}": "not raced",
        f"not surely faster, and changes the batch: {ratio}, by probes": "not surely faster, and changes the batch",
        f"{ratio}, in 12 paired blocks": "slower",
        "its proof failed (out of memory: tried 2 GiB)": "its proof failed (out of memory: tried 2 GiB)",
        "failed in the race: over budget, 1.5 GiB": "failed in the race: over budget, 1.5 GiB",
        "": "",
    }  # fmt: skip
    slower = Ratio(value=0.7, low=0.6, high=0.8, pairs=12)
    for note, reason in cases.items():
        candidate = Candidate(plan=BEST, outcome=measured(samples_per_s=900), over_recommended=slower, note=note)
        assert why(candidate) == reason


def test_a_plan_is_slower_only_if_its_interval_is_below_one() -> None:
    """The 0.96x of the first plan is within the noise of the race; that of the second is not."""
    cases = {(0.79, 1.16): "within the noise", (0.93, 0.99): "slower", (0.97, 1.0): "within the noise", (1.01, 1.2): ""}
    for (low, high), reason in cases.items():
        ratio = Ratio(value=(low * high) ** 0.5, low=low, high=high, pairs=12)
        note = f"{ratio} of the recommended plan's throughput, in 12 paired blocks"
        candidate = Candidate(plan=BEST, outcome=measured(samples_per_s=900), over_recommended=ratio, note=note)
        assert why(candidate) == reason


def test_all_plans_that_raced_come_first_even_near_duplicates_and_are_sorted_by_throughput() -> None:
    def candidate(size: int, rate: float, pairs: int) -> Candidate:
        gain = Ratio(value=rate / 100, low=rate / 110, high=rate / 90, pairs=pairs)
        plan = BEST.replace(micro_batch_size=size)
        return Candidate(plan=plan, outcome=measured(), gain=gain, rate_per_s=rate, note=f"note {size}")

    raced = [candidate(36, 150, 8), candidate(100, 190, 8), candidate(110, 195, 8)]  # 32 is the recommended size
    probed = [candidate(500, 120, 0), candidate(34, 198, 0), candidate(300, 180, 0), candidate(350, 170, 0)]
    found = lines(rate_per_s=200.0, alternatives=tuple(raced + probed))
    assert sizes(found) == [110, 100, 36, 300, 500]
    assert found[-1] == "  and 2 more in a.yaml"
    many = [candidate(1000 + n, 200 - n, 8) for n in range(7)]
    assert sizes(lines(rate_per_s=200.0, alternatives=(*many, *probed))) == [1000 + n for n in range(7)]


def test_a_plan_with_a_lower_ratio_never_has_a_higher_throughput() -> None:
    """In a record without rates the probes, which contradict the race, are not shown."""
    gains = {1: 1.9, 2: 1.5, 4: 1.1, 8: 0.5}
    candidates = [on_front(size, 40_000 * size, 3, gain) for size, gain in gains.items()]
    found: Answer = record(alternatives=tuple(candidates))
    rates = [rate_per_s(found, each) or 0.0 for each in (recommended(found), *candidates)]
    assert rates == sorted(rates, reverse=True)
    assert min(rates) > 0


def test_nearly_equal_plans_are_shown_once() -> None:
    near: tuple[Plan, ...] = tuple(BEST.replace(micro_batch_size=size) for size in (100, 110, 130))
    beside = tuple(Candidate(plan=plan, outcome=measured()) for plan in (*near, OWN.replace(micro_batch_size=110)))
    assert sizes(lines(alternatives=beside)) == [100, 130, 110]


def test_at_100_columns_nothing_is_left_out_and_a_long_reason_wraps() -> None:
    ratio = Ratio(value=1.05, low=0.9, high=1.2, pairs=9)
    note = f"not faster beyond the noise, and changes the batch: {ratio} of the recommended plan's throughput"
    plan = BEST.replace(micro_batch_size=16, optimizer_implementation="foreach", memory_format="channels_last")
    candidate = Candidate(
        plan=plan, outcome=measured(samples_per_s=900, peak_bytes=2**30 + 2**27), gain=ratio, note=note
    )
    for width in (100, 104, 110, 130):
        found = lines(width, alternatives=(candidate,))
        assert [title in found[0] for title in ("vs baseline", "samples/s", "peak")] == [True] * 3
        words = " ".join(" ".join(found).split())
        assert ".." not in words
        ends = [re.sub(r".*(?:MiB|GiB)", "", line[width - 31 :]).strip() for line in found[1:]]
        assert " ".join(" ".join(ends).split()).endswith("not faster beyond the noise, and changes the batch")
        assert max(map(len, found)) <= width
