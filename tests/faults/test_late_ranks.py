"""F43: a rank that is still in an old search, or joins it late, does not disturb the next search of the others."""

import time
from typing import Any

import pytest
import torch
from torch import distributed

from autofit.core.errors import RanksLost
from autofit.probing.ranks import launch
from autofit.probing.ranks.launch import Launch, joined
from autofit.workloads.step import Ranks
from scripts.bench.ranks.launching import launched

torch_distributed: Any = distributed
"""The same module, of which torch does not declare all names."""
LIMIT_S, LATE_S = 1.0, 3.0


@pytest.mark.fault("F43")
def test_f43_what_a_rank_says_of_an_old_search_is_not_heard_in_the_next() -> None:
    store = torch_distributed.HashStore()

    def ranks(search: int) -> list[Launch]:
        prefixed = torch_distributed.PrefixStore(f"autofit/{search}", store)
        return [Launch(prefixed, number, 2, "cpu") for number in range(2)]

    old, new = ranks(0), ranks(1)
    asked = new[0].command("rehearse")
    old[1].reply(asked, "of another search")
    old[0].command("end")
    with pytest.raises(RanksLost, match="no answer of rank 1"):
        new[0].replies(asked, 0.05)
    new[1].reply(asked, "mine")
    assert new[0].replies(asked, 1.0) == ["mine"]
    assert new[1].next()[1]["do"] == "rehearse"


def searches(ranks: Ranks) -> list[Any]:
    """Joins two searches one after the other; rank 1 comes to the first when the other has given it up."""
    launch.SILENCE_S, launch.PULSE_S = 2.0, 0.2
    said = list[Any]()
    if ranks.number == 1:
        time.sleep(LATE_S)
    try:
        with joined(torch.device("cpu"), print, LIMIT_S) as found:
            said.append(found.next() if ranks.number else "both joined")
    except RanksLost as error:
        said.append(str(error))
    with joined(torch.device("cpu"), print, 60.0) as found:
        said.append(found.exchanged("opened", f"by rank {found.number}", 30.0))
        with found.group(5.0) as group:
            total = torch.ones(1)
            distributed.all_reduce(total, group=group.group)
            said.append(total.item())
    return said


@pytest.mark.slow
@pytest.mark.leaves("multiprocessing keeps a tracker of its resources")
@pytest.mark.fault("F43")
def test_f43_a_rank_that_joins_a_search_late_is_told_and_is_heard_in_the_next() -> None:
    first, second = launched(searches)
    assert "no answer of rank 1 within 1 s" in first[0]
    assert "no sign of life of rank 0" in second[0]
    assert first[1:] == second[1:] == [["by rank 0", "by rank 1"], 2.0]
