"""The race: who leaves, who stays, and how often it is wrong."""

import math
import random
from collections.abc import Callable
from statistics import fmean

import pytest

from autofit.search.race import MAX_ROUNDS, MIN_ROUNDS, Race, pair, run_race


def simulated(
    truth: dict[str, float], noise: float, seed: int, drift: float = 0.0
) -> tuple[Callable[[str], float | str], dict[str, float]]:
    """Returns a block function over true throughputs, with noise per block and a drift shared by all."""
    draw = random.Random(seed)
    state = {"drift": 0.0, "blocks": 0}

    def block(name: str) -> float | str:
        state["drift"] += drift
        state["blocks"] += 1
        return truth[name] * math.exp(draw.gauss(0, noise) + state["drift"])

    return block, state


def race_of(truth: dict[str, float], noise: float, seed: int, drift: float = 0.0, pinned: str | None = None) -> Race:
    race = Race(tuple(truth), pinned)
    run_race(race, simulated(truth, noise, seed, drift)[0], lambda: False)
    return race


def test_the_order_turns_every_round() -> None:
    race = Race(("a", "b", "c"))
    orders = []
    for _ in range(4):
        orders.append(race.order())
        race.add({"a": 1.0, "b": 1.1, "c": 0.9})
    assert orders[:2] == [["a", "b", "c"], ["c", "b", "a"]]
    assert orders[2] == orders[0]


def test_nobody_leaves_before_the_fourth_round() -> None:
    race = Race(("fast", "slow"))
    for _ in range(MIN_ROUNDS - 1):
        race.add({"fast": 10.0, "slow": 1.0})
        assert race.running == ["fast", "slow"]
        assert not race.over
    race.add({"fast": 10.0, "slow": 1.0})
    assert race.left == {"slow": "slower in the race"}
    assert race.over


def test_the_pinned_plan_runs_to_the_end_and_gives_everyone_a_ratio() -> None:
    race = race_of({"own": 1.0, "a": 1.5, "b": 1.52}, 0.02, 1, pinned="own")
    assert len(race.logs["own"]) == race.rounds
    pairing = race.pairing("a", "own")
    assert pairing is not None
    ratio = pairing.ratio()
    assert ratio.low < 1.5 < ratio.high
    assert ratio.pairs == len(race.logs["a"])


def test_ten_percent_is_separated_and_rarely_the_wrong_way() -> None:
    wrong = rounds = 0
    for seed in range(200):
        race = race_of({"a": 1.0, "b": 1.1}, 0.03, seed)
        wrong += race.leader() != "b"
        rounds += race.rounds
    assert wrong <= 4
    assert rounds / 200 < 10


def test_equal_plans_end_as_a_tie_and_not_at_the_last_round() -> None:
    tied = dropped = rounds = 0
    for seed in range(100):
        race = race_of({"a": 1.0, "b": 1.0}, 0.02, seed)
        tied += "tied in the race" in race.left.values()
        dropped += "slower in the race" in race.left.values()
        rounds += race.rounds
    assert tied >= 60
    assert dropped <= 30  # repeated looks at little data; such a drop costs nothing between equals
    assert rounds / 100 < 0.75 * MAX_ROUNDS


def test_drift_shared_by_all_does_not_decide() -> None:
    wrong = sum(race_of({"a": 1.0, "b": 1.08}, 0.01, seed, drift=0.03).leader() != "b" for seed in range(100))
    assert wrong <= 2


def test_one_stall_does_not_throw_out_the_faster_plan() -> None:
    race = Race(("a", "b"))
    draw = random.Random(3)
    for number in range(12):
        stall = 0.02 if number == 2 else 1.0
        race.add({name: value * math.exp(draw.gauss(0, 0.02)) for name, value in {"a": 1.2 * stall, "b": 1.0}.items()})
        if race.over:
            break
    assert race.left != {"a": "slower in the race"}


def test_the_rounds_are_bounded() -> None:
    race = race_of({"a": 1.0, "b": 1.03}, 0.5, 5)
    assert race.rounds <= MAX_ROUNDS
    assert race.over


def test_a_decided_race_goes_on_until_its_gain_over_the_pinned_plan_is_known_well() -> None:
    rounds = []
    for seed in range(20):
        race = race_of({"own": 1.0, "a": 8.0}, 0.2, seed, pinned="own")
        rounds.append(race.rounds)
        assert race.decided
        pairing = race.pairing("a", "own")
        assert pairing is not None
        ratio = pairing.ratio()
        assert ratio.high / ratio.value < 1.1 or race.rounds == MAX_ROUNDS
        assert race_of({"own": 1.0, "a": 8.0}, 0.2, seed).rounds == MIN_ROUNDS  # no plan whose gain is reported
    assert fmean(rounds) > 2 * MIN_ROUNDS


def test_a_quiet_race_ends_with_the_first_rounds_and_a_limit_of_time_ends_a_wide_one() -> None:
    assert race_of({"own": 1.0, "a": 8.0}, 0.01, 1, pinned="own").rounds == MIN_ROUNDS
    race = Race(("own", "a"), "own")
    run_race(race, simulated({"own": 1.0, "a": 8.0}, 0.3, 2)[0], lambda: race.rounds >= 5)
    assert race.wide
    assert race.rounds == 5


def test_a_failed_block_takes_the_plan_out_with_its_reason() -> None:
    good, _ = simulated({"a": 1.0, "b": 2.0, "c": 1.5}, 0.01, 0)
    race = Race(("a", "b", "c"), pinned="a")
    run_race(
        race, lambda name: "failed: out of memory" if name == "b" and race.rounds == 2 else good(name), lambda: False
    )
    assert race.left["b"] == "failed: out of memory"
    assert race.leader() == "c"
    assert len(race.logs["b"]) == 2


def test_a_race_is_over_when_all_but_one_failed() -> None:
    race = Race(("a", "b"), pinned="a")
    run_race(race, lambda name: "failed" if name == "a" else 1.0, lambda: False)
    assert race.running == ["b"]
    assert race.rounds == 1


def test_time_ends_the_race_between_two_rounds() -> None:
    race = Race(("a", "b"))
    block, state = simulated({"a": 1.0, "b": 1.0}, 0.05, 0)
    run_race(race, block, lambda: state["blocks"] >= 6)
    assert race.rounds == 3
    assert not race.over


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    draw = random.Random(11)
    for pairs in (4, 6):  # the mean; from 8 pairs on the location is the median
        inside = 0
        for _ in range(1000):
            ours = [math.log(1.3) + draw.gauss(0, 0.05) for _ in range(pairs)]
            ratio = pair(ours, [draw.gauss(0, 0.05) for _ in range(pairs)]).ratio()
            inside += ratio.low <= 1.3 <= ratio.high
        assert 0.92 <= inside / 1000 <= 0.98


def test_a_comparison_needs_two_common_rounds() -> None:
    with pytest.raises(ValueError, match="two pairs"):
        pair([0.1], [0.1, 0.2])
    assert Race(("a", "b")).pairing("a", "b") is None


def test_a_race_goes_on_where_all_that_began_it_have_failed() -> None:
    race = Race(("a", "b"))
    for _ in range(MIN_ROUNDS):
        race.add({"a": 1.0, "b": 1.0001})
    race.join("c")
    race.join("d")
    race.leave("a", "failed")
    race.leave("b", "failed")
    race.add({"c": 1.0, "d": 2.0})
    assert race.running == ["c", "d"]


def test_a_pinned_plan_that_is_slower_runs_on_but_is_no_contender() -> None:
    race = Race(("a", "b", "own"), pinned="own")
    assert race.contenders == ["a", "b", "own"]
    for shift in (0.0, 0.01, 0.0, 0.01, 0.0):
        race.add({"a": 100 + shift, "b": 100.01 - shift, "own": 80})
    assert race.running == ["a", "b", "own"]
    assert race.contenders == ["a", "b"]


@pytest.mark.parametrize("own", [100.0, 120.0])
def test_a_pinned_plan_that_leads_or_may_tie_is_a_contender(own: float) -> None:
    race = Race(("a", "own"), pinned="own")
    for shift in (0.0, 5.0, 0.0, 5.0, 0.0):
        race.add({"a": 100 + shift, "own": own + 5 - shift})
    assert "own" in race.contenders


def test_a_pinned_plan_that_failed_is_no_contender() -> None:
    race = Race(("a", "b", "own"), pinned="own")
    race.leave("own", "failed in the race: out of memory")
    assert race.contenders == ["a", "b"]


def test_a_round_is_given_up_when_the_time_of_the_proof_has_come() -> None:
    race = Race(("a", "b", "c"))
    block, state = simulated({"a": 1.0, "b": 1.0, "c": 1.0}, 0.05, 0)
    run_race(race, block, lambda: False, late=lambda: state["blocks"] >= 8)
    assert race.rounds == 2
    assert state["blocks"] == 8
    assert [len(logs) for logs in race.logs.values()] == [2, 2, 2]
