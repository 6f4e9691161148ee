"""A launch of several ranks: what they say to each other, and the process groups on which their steps communicate.

They speak over the key-value store of the launch. Waiting for a key has a limit, which a collective has not: so a rank
that fails, or never arrives, leaves nobody waiting.
"""

import json
import math
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from itertools import count as counting
from time import monotonic, sleep
from typing import Any

import torch
from torch import distributed

from autofit.core.environment import LAUNCHED, launched_ranks
from autofit.core.errors import RanksLost
from autofit.torch_internals import (
    default_group,
    default_store,
    forget_groups,
    issued,
    known_groups,
    limit_time,
    time_limit,
)
from autofit.tracing.ranks import FAKE, fakes_allowed
from autofit.workloads.step import Ranks, rows_of

ARRIVAL_S = 300.0
"""Seconds that ranks wait for each other to begin: imports and data sets may take one longer than another."""
PULSE_S, SILENCE_S = 2.0, 30.0
"""How often each rank gives a sign of life, from a thread, and after how long without one it is lost."""
SAID_S = 10.0
"""Seconds after which a rank that waits for others to arrive says so."""
PAUSE_SHARE, LONGEST_PAUSE_S = 0.1, 0.02
"""A rank that waits for another pauses for this share of the time that it has waited, and at most this long."""
BACK_ENDS = {"cpu": "gloo", "cuda": "nccl"}
torch_distributed: Any = distributed
"""The same module, of which torch does not declare all names."""
_searches = counting()
"""Numbers the searches of this process. All ranks make the same ones, so that each has keys of its own."""


def rank_count() -> int:
    """Returns how many ranks this process was started with, or belongs to; 1 if it is alone."""
    if not distributed.is_available():
        return 1
    if distributed.is_initialized():
        return distributed.get_world_size()
    return launched_ranks()[1]


@dataclass(slots=True)
class Launch:
    """The ranks of a launch, as one of them sees them. Rank 0 leads.

    Attributes:
        store: the key-value store, for one search.
        number: number of this rank, from 0.
        count: number of ranks.
        device_type: torch's name of the devices of the ranks.
        fake: ranks that do not exist, with the number of this one, for steps that wait for nobody. Their group is the
            default of the process, so that a step may communicate itself; in a `group`, that one is.
    """

    store: Any
    number: int
    count: int
    device_type: str
    fake: Ranks = field(init=False)
    _default: Any = field(init=False)
    _theirs: dict[Any, int] = field(default_factory=dict)
    _said: int = 0
    _heard: int = 0
    _ended: threading.Event = field(default_factory=threading.Event)

    @property
    def leads(self) -> bool:
        """Whether this rank decides what all do."""
        return self.number == 0

    @property
    def names_groups(self) -> bool:
        """Whether something has communicated on a process group of this process that is not the launch's."""
        return any(issued(group) != before for group, before in self._theirs.items())

    def command(self, do: str, **what: object) -> int:
        """Says to all followers what to do. Returns the number of the command."""
        self._said += 1
        self._put(f"command/{self._said}", {"do": do, **what})
        return self._said

    def next(self) -> tuple[int, dict[str, Any]]:
        """Waits for the leader's next command. Returns its number and what it says.

        Raises:
            RanksLost: the leader gave no sign of life for `SILENCE_S`.
        """
        self._heard += 1
        key = f"command/{self._heard}"
        self._await(0, key, "its next command")
        return self._heard, self._get(key)

    def reply(self, number: int, what: object) -> None:
        """Answers a command."""
        self._put(f"reply/{number}/{self.number}", what)

    def replies(self, number: int, limit_s: float) -> list[Any]:
        """Returns what each follower answers to a command, in their order.

        Raises:
            RanksLost: one of them does not within `limit_s` seconds.
        """
        return self._all([f"reply/{number}/{rank}" for rank in range(1, self.count)], limit_s, first=1)

    def tell_all(self, about: str, what: object) -> None:
        """Says to all ranks what this one says in `exchanged`, without waiting for theirs."""
        self._put(f"{about}/{self.number}", what)

    def exchanged(
        self, about: str, what: object, limit_s: float, say: Callable[[str], None] | None = None
    ) -> list[Any]:
        """Returns what each rank says about something, in their order. No rank leads.

        With `say`, the ranks may still have to arrive: it gets a text if one of them takes long.

        Raises:
            RanksLost: one of them does not within `limit_s` seconds.
        """
        self.tell_all(about, what)
        return self._all([f"{about}/{rank}" for rank in range(self.count)], limit_s, say=say)

    @contextmanager
    def group(self, limit_s: float, *, in_rows: bool = False) -> Iterator[Ranks]:
        """Makes a process group for the steps of one plan. All ranks make it, even one that has already failed.

        Args:
            limit_s: seconds after which a collective ends with an error.
            in_rows: whether the ranks also form a grid.
        """
        groups = list[Any]()

        def new_group(ranks: list[int] | None) -> Any:
            back_end, limit = BACK_ENDS[self.device_type], timedelta(seconds=limit_s)
            groups.append(distributed.new_group(ranks, backend=back_end, timeout=limit))
            return groups[-1]

        with default_group(self._default):
            ranks = Ranks.of(new_group(None), self.device_type, guarded=True)
            try:
                if in_rows:
                    ranks = ranks.in_rows(new_group)
                with default_group(ranks.group):
                    yield ranks
            finally:
                for mesh in filter(None, (ranks.mesh, ranks.grid)):
                    forget_groups(mesh)
                for made in reversed(groups):
                    _destroyed(made)

    @contextmanager
    def alive(self) -> Iterator[None]:
        """Gives signs of life from a thread, until the context is left."""
        store = self.store.clone()  # a connection of its own: waiting for a key takes the other one

        def pulse() -> None:
            for number in counting():
                with suppress(Exception):
                    store.set(f"pulse/{self.number}", str(number))
                if self._ended.wait(PULSE_S):
                    return

        thread = threading.Thread(target=pulse, name="autofit-pulse", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            thread.join()

    def _put(self, key: str, what: object) -> None:
        try:
            self.store.set(key, json.dumps(what))
        except RuntimeError as error:
            raise _lost(error) from None

    def _get(self, key: str) -> Any:
        try:
            return json.loads(self.store.get(key))
        except RuntimeError as error:
            raise _lost(error) from None

    def _is_there(self, key: str, limit_s: float) -> bool:
        """Returns whether a key is set within some seconds.

        It asks again and again, with longer and longer pauses: `Store.wait` sees no interrupt, and warns at its limit.
        """
        began = monotonic()
        while not self._has(key):
            waited_s = monotonic() - began
            if waited_s >= limit_s:
                return False
            sleep(min(PAUSE_SHARE * waited_s, LONGEST_PAUSE_S))
        return True

    def _has(self, key: str) -> bool:
        try:
            return bool(self.store.check([key]))
        except RuntimeError as error:
            raise _lost(error) from None

    def _all(
        self, keys: Sequence[str], limit_s: float, first: int = 0, say: Callable[[str], None] | None = None
    ) -> list[Any]:
        """Returns what is under the keys of several ranks, in their order; `say` gets a text if one is waited for."""
        began, found = monotonic(), list[Any]()
        for rank, key in enumerate(keys, first):
            if say is not None and not self._is_there(key, min(SAID_S, limit_s)):
                say(f"waiting for rank {rank} of {self.count}, up to {limit_s:.0f} s: all ranks must call autofit")
            self._await(rank, key, "an answer", limit_s - (monotonic() - began), limit_s, has_begun=say is None)
            found.append(self._get(key))
        return found

    def _await(
        self,
        rank: int,
        key: str,
        what: str,
        left_s: float = math.inf,
        limit_s: float = math.inf,
        *,
        has_begun: bool = True,
    ) -> None:
        """Waits until a rank has set a key.

        Raises:
            RanksLost: it does not in time; or it `has_begun`, and gives no sign of life.
        """
        until, since, pulse = monotonic() + left_s, monotonic(), None
        while not self._is_there(key, min(PULSE_S, until - monotonic())):
            now, found = monotonic(), self._pulse(rank)
            if found != pulse:
                since, pulse = now, found
            silent = has_begun and now - since > SILENCE_S
            if silent or now >= until:
                answer, sign = f"answer of rank {rank} within {limit_s:.0f} s", f"sign of life of rank {rank} for"
                raise RanksLost(
                    f"found no {f'{sign} {SILENCE_S:.0f} s' if silent else answer}; expected {what}, as from each of "
                    f"{self.count} ranks. All ranks must call autofit alike. See what that rank printed, then start "
                    "again."
                )

    def _pulse(self, rank: int) -> str | None:
        return self._get(f"pulse/{rank}") if self._has(f"pulse/{rank}") else None


def _lost(error: Exception) -> RanksLost:
    line = str(error).strip().partition("\n")[0]
    return RanksLost(
        f"found no connection to the store of the launch ({line}); expected the launcher to run until all ranks have "
        "ended. See the output of the other ranks, and start again."
    )


@contextmanager
def joined(device: torch.device, say: Callable[[str], None], limit_s: float) -> Iterator[Launch]:
    """Joins the ranks of this launch until the context is left.

    A process group that the user has made is used. Otherwise one is made, and removed at the end.

    Args:
        device: the device of this rank.
        say: gets a text if another rank takes long to arrive.
        limit_s: seconds that the ranks wait for each other to arrive.

    Raises:
        RanksLost: the ranks did not meet, or cannot communicate.
    """
    number, back_end = next(_searches), BACK_ENDS.get(device.type)
    if back_end is None or not distributed.is_backend_available(back_end):
        raise RanksLost(
            f"found no {back_end or 'library'} through which ranks on {device.type} devices communicate; expected a "
            f"torch with it. Install one, or unset {', '.join(LAUNCHED)} to tune in one process."
        )
    with ExitStack() as undo:
        if distributed.is_initialized():
            store, rank, count = default_store(), distributed.get_rank(), distributed.get_world_size()
        else:
            store, rank, count = _met()
        # Keys of its own, so that a group that the user makes later finds none of these.
        store = torch_distributed.PrefixStore(f"autofit/{number}", store)
        launch = Launch(store, rank, count, device.type)
        launch.exchanged("arrived", "", limit_s, say)
        undo.enter_context(launch.alive())
        try:
            if not distributed.is_initialized():
                limit = timedelta(seconds=ARRIVAL_S)
                distributed.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=limit)
                undo.callback(distributed.destroy_process_group)
            _limit_groups(launch, undo)
            undo.enter_context(fakes_allowed(device.type))
            launch.fake = _fake(device.type, undo)
            _number_alike(launch)
            launch._default = distributed.group.WORLD
            undo.enter_context(default_group(launch.fake.group))
        except RuntimeError as error:
            raise _not_met(error) from None
        yield launch


def _limit_groups(launch: Launch, undo: ExitStack) -> None:
    """Limits the time of the user's process groups, as a step that names one may wait for other ranks in vain."""
    for group in known_groups():
        with suppress(RuntimeError):  # of devices of another kind
            before = time_limit(group, launch.device_type)
            limit_time(group, min(before, timedelta(seconds=SILENCE_S)))
            undo.callback(limit_time, group, before)
            launch._theirs[group] = issued(group)


def _number_alike(launch: Launch) -> None:
    """Has all ranks give their next group the same number.

    torch names a group by how many its process has made, and ranks meet in it by its name. A rank that joined a search
    which the others had given up has made more than they.
    """
    mine = int(launch.fake.group.group_name)
    for _ in range(max(launch.exchanged("groups", mine, ARRIVAL_S)) - mine):
        _destroyed(distributed.new_group(backend=FAKE))


def _fake(device_type: str, undo: ExitStack) -> Ranks:
    """Returns ranks that do not exist beside those of the launch, in rows too if there are enough."""

    def new_group(ranks: list[int] | None) -> Any:
        made = distributed.new_group(ranks, backend=FAKE)
        undo.callback(_destroyed, made)
        return made

    ranks = Ranks.of(new_group(None), device_type, is_fake=True, guarded=True)
    return ranks if rows_of(ranks.count) < 2 else ranks.in_rows(new_group)


def _destroyed(group: Any) -> None:
    with suppress(Exception):  # the peers, or the group of all, may already be gone
        distributed.destroy_process_group(group)


def _met() -> tuple[Any, int, int]:
    """Returns the store of the launch, the number of this rank and the number of ranks."""
    try:
        found: tuple[Any, int, int] = next(torch_distributed.rendezvous("env://", timeout=timedelta(seconds=ARRIVAL_S)))
    except (RuntimeError, ValueError) as error:
        raise _not_met(error) from None
    return found


def _not_met(error: Exception) -> RanksLost:
    line = str(error).strip().partition("\n")[0]
    place = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    return RanksLost(
        f"the ranks did not meet at {place} within {ARRIVAL_S:.0f} s: {line}; expected WORLD_SIZE="
        f"{os.environ.get('WORLD_SIZE')} of them, each of which calls autofit. Start them all with torchrun, or unset "
        f"{', '.join(LAUNCHED)} to tune in one process."
    )
