"""What ranks say to each other, and what they do if one says nothing."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import distributed

from autofit.core.environment import LAUNCHED
from autofit.core.errors import RanksLost
from autofit.probing.ranks import launch
from autofit.probing.ranks.launch import Launch, joined, rank_count


def ranks(count: int = 3) -> list[Launch]:
    """Returns the ranks of one launch, in this process."""
    module: Any = distributed  # torch does not declare all its names
    store = module.HashStore()
    return [Launch(store, number, count, "cpu") for number in range(count)]


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in LAUNCHED:
        monkeypatch.delenv(name, raising=False)


def test_followers_hear_commands_in_order_and_the_leader_their_replies() -> None:
    leader, *followers = ranks()
    assert [each.leads for each in (leader, *followers)] == [True, False, False]
    assert [leader.command("run", plan=1), leader.command("close")] == [1, 2]
    for each in followers:
        assert each.next() == (1, {"do": "run", "plan": 1})
        number, command = each.next()
        assert command == {"do": "close"}
        each.reply(number, {"of": each.number})
    assert leader.replies(2, 1.0) == [{"of": 1}, {"of": 2}]


def test_a_follower_waits_for_a_command_that_comes_late() -> None:
    leader, follower = ranks(2)
    late = threading.Timer(0.1, lambda: leader.command("end"))
    late.start()
    assert follower.next() == (1, {"do": "end"})
    late.join()


def test_each_rank_says_something_to_all() -> None:
    found = ranks()
    for each in found[1:]:
        each.tell_all("opened", each.number)
    assert found[0].exchanged("opened", 0, 1.0) == [0, 1, 2]
    assert found[2].exchanged("opened", 2, 1.0) == [0, 1, 2]


def test_a_rank_that_says_nothing_is_named() -> None:
    leader, first, _ = ranks()
    number = leader.command("rehearse")
    first.reply(number, "fits")
    with pytest.raises(RanksLost, match="found no answer of rank 2 within 0 s; expected an answer, as from each of 3"):
        leader.replies(number, 0.05)
    with pytest.raises(RanksLost, match="no answer of rank 0"):
        first.exchanged("opened", "", 0.05)


def test_a_rank_that_takes_long_to_arrive_is_named_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "SAID_S", 0.05)
    first, second = ranks(2)
    late, said = threading.Timer(0.2, lambda: second.tell_all("arrived", "")), list[str]()
    late.start()
    assert first.exchanged("arrived", "", 5.0, said.append) == ["", ""]
    assert said == ["waiting for rank 1 of 2, up to 5 s: all ranks must call autofit"]
    late.join()


@pytest.mark.fault("F42")
def test_a_follower_that_dies_is_noticed_long_before_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    silent(monkeypatch)
    leader, follower = ranks(2)
    with follower.alive():
        pass
    number = leader.command("close")
    with pytest.raises(RanksLost, match="found no sign of life of rank 1 for 0 s; expected an answer"):
        leader.replies(number, 60.0)


def silent(monkeypatch: pytest.MonkeyPatch, *, pulse_s: float = 0.02, silence_s: float = 0.2) -> None:
    monkeypatch.setattr(launch, "PULSE_S", pulse_s)
    monkeypatch.setattr(launch, "SILENCE_S", silence_s)


@pytest.mark.fault("F42")
def test_a_leader_without_a_sign_of_life_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    silent(monkeypatch)
    with pytest.raises(RanksLost, match="found no sign of life of rank 0"):
        ranks(2)[1].next()


def test_a_leader_that_is_busy_for_long_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    silent(monkeypatch)
    leader, follower = ranks(2)
    with leader.alive():
        later = threading.Timer(0.6, lambda: leader.command("end"))
        later.start()
        assert follower.next()[1] == {"do": "end"}
    later.join()
    assert not any(each.name == "autofit-pulse" for each in threading.enumerate())


class Broken:
    """A store whose server is gone."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def fails(*arguments: Any) -> Any:
            raise RuntimeError("Broken pipe\nand more")

        return fails


def test_a_store_that_is_gone_means_lost_ranks() -> None:
    rank = Launch(Broken(), 1, 2, "cpu")
    for call in (rank.next, lambda: rank.reply(1, ""), lambda: rank.replies(1, 1.0)):
        with pytest.raises(RanksLost, match=r"found no connection to the store of the launch \(Broken pipe\); "):
            call()


def test_the_number_of_ranks_is_that_of_the_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    alone(monkeypatch)
    assert rank_count() == 1
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert rank_count() == 1, "a rank also has a number and an address"
    for name, value in {"RANK": "1", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    assert rank_count() == 4


def test_ranks_that_do_not_meet_are_an_error_with_what_was_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "ARRIVAL_S", 0.5)
    given = {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    began = time.monotonic()
    with (
        pytest.raises(RanksLost, match="the ranks did not meet at localhost:1 within 0 s"),
        joined(torch.device("cpu"), print, 0.5),
    ):
        pass
    assert time.monotonic() - began < 30
    assert RanksLost.exit_code == 8
    assert not distributed.is_initialized()


@pytest.mark.parametrize(("kind", "found"), [("cuda", "found no nccl through"), ("mps", "found no library through")])
def test_a_torch_that_cannot_communicate_between_such_devices_is_an_error(
    kind: str, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(distributed, "is_backend_available", lambda name: name == "gloo")
    with pytest.raises(RanksLost, match=found), joined(torch.device(kind), print, 1.0):
        pass
