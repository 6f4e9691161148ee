"""Splitting: a micro batch that runs out of memory in a training is cut in two, and its step is run again.

The whole step begins again, from the state in which it began: without gradients, with the same random numbers, and with
all state that a pass was seen to change. So nothing of a failed pass needs to be undone piece by piece, and nothing but
that state is copied while nothing fails.

Of several ranks, one that fails completes the collective operations in which the others wait (`Exchange`). After the
last pass of each step, and before its update, all ranks vote on it, on the host.
"""

import gc
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from itertools import chain
from operator import attrgetter
from typing import Any

import torch
from torch import nn

from autofit.core.errors import AutofitError, UsageError, WorkloadError
from autofit.core.outcome import Status
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.units import format_bytes, format_names
from autofit.devices.base import Device
from autofit.failures.classify import classify
from autofit.failures.evidence import clear_frames, collect, named_error, scrub
from autofit.gates.check import GradientCheck
from autofit.gates.gradients import Steps
from autofit.gates.verdict import ACCUMULATION
from autofit.guard import Guard
from autofit.guard.object_state import Piece, fingerprint
from autofit.guard.process_state import generators
from autofit.guard.tensor_state import StorageBytes
from autofit.prepare import prepare
from autofit.strategies.base import Facts
from autofit.workloads.batch_algebra import batch_size
from autofit.workloads.batches import BatchSource
from autofit.workloads.counted_batches import Cuttable
from autofit.workloads.loss import Compute, LossRule
from autofit.workloads.micro_batch_weights import Weighing
from autofit.workloads.step import Draft, Splits, TrainStep
from autofit.workloads.tree import Batch, map_tensors, tensors
from autofit.workloads.useful_targets import weights_of
from autofit.workloads.votes import Votes
from autofit.workloads.workload import Workload

AT_ONCE = 2
"""Number of failures of one shape after which micro batches of this shape are cut before they run."""
MOST_BYTES = 2**24
"""Maximum size of the tensors that a pass changes: each step copies them."""
SLOW_GENERATORS = frozenset(("python", "numpy"))
"""The global generators whose state is remembered only if a pass draws from them: it has 625 numbers each."""
_NAMED = 3
_NOWHERE = -1
"""Stands for the micro batch to cut if there is none."""
_FAILED = 2**40
"""A vote for the end of the step. A smaller one is for a cut: the micro batch, then the rank, from 1 on."""

Part = tuple[Batch, float]
"""A micro batch, with its weight in the step."""


@dataclass(frozen=True, slots=True)
class Moving:
    """What a pass changes besides gradients and the global random generators.

    Attributes:
        tensors: parameters, buffers and other tensors.
        pieces: everything else, such as a counter of the model or a generator of the user's.
        drawn: names of the `SLOW_GENERATORS` from which a pass draws.
    """

    tensors: tuple[torch.Tensor, ...] = ()
    pieces: tuple[Piece, ...] = ()
    drawn: frozenset[str] = frozenset()


def wanted(on_oom: str) -> bool:
    """Returns whether micro batches are to be cut.

    Raises:
        UsageError: the value is unknown.
    """
    if on_oom not in ("raise", "split"):
        raise UsageError(f"found on_oom={on_oom!r}; expected 'raise' or 'split'.")
    return on_oom == "split"


def checked(
    workload: Workload, source: BatchSource, loss: LossRule, device: Device, guard: Guard
) -> tuple[Weighing | None, Moving]:
    """Checks that micro batches may be cut. Returns by what the parts are weighted, and what a pass moves.

    A few gradients are computed in training mode on batches of at most 8 samples, and compared as a search compares
    them. Call it inside the guard, which puts everything back.

    Raises:
        UsageError: the gradient of the parts is not that of the whole, or a pass cannot be undone.
    """
    if workload.update_fn is not None or not workload.training:
        raise _refused("the step is not made of backward passes of a loss, and an update")
    if not source.has_rows:
        raise _refused("the rows of its batches are not its samples, so that they cannot be cut")
    target, found, drawn = device.torch_device, dict[str, list[Piece]](), set[str]()
    noted = replace(loss, compute=_noting(loss.compute, drawn))

    def reset() -> None:
        guard.restore()
        workload.set_mode()
        workload.model.zero_grad(set_to_none=True)

    def differences() -> list[str]:
        now = guard.different_pieces()
        found.update(now)
        return list(now)

    def build(plan: Plan) -> TrainStep:
        return prepare(plan, Draft.of(workload, noted, target), ())

    facts = Facts(
        model=workload.model,
        batch=source.typical(source.small_size, 1)[0],
        optimizer=None,
        device_type=device.type,
        capabilities=frozenset(),
        numerics="exact",
        training=True,
        micro_batch_size=2,
        global_batch_size=2,
    )
    cut, whole = (Plan(values={MICRO_BATCH_SIZE: 2 // n, ACCUMULATION_STEPS: n}) for n in (2, 1))
    check = GradientCheck(facts, (), Steps(build, 0, reset, differences), source, reset, cut, whole, {})
    reset()
    check.run()
    result, verdict = check.result(), check.found.get(ACCUMULATION)
    reset()
    if verdict is None or not (result.passed and result.checked):
        raise _refused(result.reason)
    return Weighing.parse(verdict.weighing), _moving(verdict.moves, found, drawn)


def _noting(compute: Compute, drawn: set[str]) -> Compute:
    """Returns a loss that adds to `drawn` from which of the `SLOW_GENERATORS` its forward pass draws."""

    def states() -> dict[str, str]:
        return {name: fingerprint(read()) for name, read, _ in generators() if name in SLOW_GENERATORS}

    def noting(model: nn.Module, batch: Batch) -> torch.Tensor:
        before, found = states(), compute(model, batch)
        drawn.update(name for name, state in states().items() if before.get(name) != state)
        return found

    return noting


def _moving(names: Sequence[str], found: dict[str, list[Piece]], drawn: set[str]) -> Moving:
    """Returns what the names of moving state stand for.

    Raises:
        UsageError: a pass changes what is trained, or more than a step should copy.
    """
    pieces = [piece for name in names for piece in found[name]]
    held = {name: t for piece in pieces if isinstance(piece, StorageBytes) for name, t in piece.tensors.items()}
    if trained := [name for name in names if name in held and held[name].requires_grad]:
        raise _refused(f"a pass changes {format_names(trained, _NAMED)}, which is trained")
    moved = tuple(held[name] for name in names if name in held)
    if (size := sum(tensor.nbytes for tensor in moved)) > MOST_BYTES:
        raise _refused(f"a pass changes {format_bytes(size)} of tensors by itself, which each step would have to copy")
    others = {id(piece): piece for piece in pieces if not isinstance(piece, StorageBytes)}
    return Moving(moved, tuple(sorted(others.values(), key=lambda piece: piece.order)), frozenset(drawn))


def check_step(step: TrainStep, votes: Votes | None = None) -> None:
    """Checks that the step of a plan can begin again after a failed pass. Closes it if not.

    Raises:
        UsageError: it cannot.
        RanksLost: that of another rank cannot.
    """
    try:
        with nullcontext() if votes is None else votes.together():
            if reason := _objection(step.draft):
                raise _refused(reason)
    except AutofitError:
        step.close()
        raise


def _objection(draft: Draft) -> str:
    """Returns why a step cannot begin again; "" if it can."""
    if draft.ranks is not None and draft.exchange is None:
        return (
            "its ranks cannot leave a failed pass together with layout=tensor, with sync_each_batch=False, or with "
            "shards before torch 2.13"
        )
    if draft.one_pass:
        return "each gradient is used up within its backward pass, which therefore cannot begin again"
    groups = [] if draft.optimizer is None else draft.optimizer.param_groups
    held = {id(parameter) for group in groups for parameter in group["params"]}
    others = [name for name, p in draft.model.named_parameters() if p.requires_grad and id(p) not in held]
    if others:
        return (
            f"the optimizer does not hold {format_names(others, _NAMED)}, whose gradients add up from step to step. "
            "Give them to the optimizer, or freeze them with requires_grad_(False)"
        )
    return ""


def _refused(reason: str) -> UsageError:
    return UsageError(
        f"found on_oom='split', but {reason}; expected a training whose micro batches can be cut. Leave on_oom out: an "
        "out-of-memory is then raised as it is."
    )


class _Before:
    """The state in which a step begins, and in which it can begin again."""

    def __init__(self, step: TrainStep, parts: Sequence[Part], splitting: "Splitting") -> None:
        self.step, self._moving, self._copies = step, splitting.moving, splitting.copies
        for piece in self._moving.pieces:
            piece.save()
        with torch.no_grad():
            for kept, tensor in zip(self._copies, self._moving.tensors, strict=True):
                kept.copy_(tensor)
        self._generators = [(write, read()) for _, read, write in splitting.generators]
        self._versions = [(t, t._version) for part, _ in parts for t in _tensors(part) if not t.is_inference()]
        gradients = map(attrgetter("grad"), self._parameters())
        self._has_gradients = any(gradient is not None for gradient in gradients)

    def objection(self) -> str:
        """Returns why the step cannot begin again; "" if it can."""
        if self._has_gradients:
            return "gradients were set before the step, which would be lost. Clear them before each step"
        if any(tensor._version != version for tensor, version in self._versions):
            return "the step writes into its batch. Let it write into a copy"
        return ""

    def restore(self) -> None:
        """Puts back the state. Gradients that were set before the step keep what the failed pass has added."""
        if not self._has_gradients:
            for parameter in self._parameters():
                parameter.grad = None
        for piece in self._moving.pieces:
            piece.restore()
        with torch.no_grad():
            for kept, tensor in zip(self._copies, self._moving.tensors, strict=True):
                tensor.copy_(kept)
        for write, state in self._generators:
            write(state)
        torch.clear_autocast_cache()

    def _parameters(self) -> Iterator[torch.Tensor]:
        groups = () if self.step.optimizer is None else self.step.optimizer.param_groups
        return chain.from_iterable(group["params"] for group in groups)


@dataclass(slots=True)
class Splitting:
    """Runs the passes of steps, and cuts micro batches that run out of memory.

    Parts are weighted as accumulation weights micro batches, so that the step's gradient and loss stay the same, up to
    rounding. Where a pass draws random numbers, parts draw other ones than the whole: then the step is another one of
    the same distribution. An out-of-memory at one sample, and every other error, is raised as it is.

    Several ranks cut the same micro batch, each its own, so that all have as many passes. Where one cannot cut it, both
    parts are the whole with half of its weight.

    Attributes:
        weighing: what the loss is a mean over; None if over samples.
        moving: what a pass changes.
        record: keeps what was cut, for the next search, and returns why it could not be kept, or "".
        splits: what was cut so far.
        votes: of the ranks that train together; None if there is one.
        copies: of the tensors that a pass changes.
        generators: the global random generators that a pass may draw from.
    """

    device: Device
    weighing: Weighing | None = None
    moving: Moving = field(default_factory=Moving)
    record: Callable[[Splits], str] = lambda splits: ""
    splits: Splits = field(default_factory=Splits)
    votes: Votes | None = None
    copies: tuple[torch.Tensor, ...] = ()
    generators: Sequence[tuple[str, Callable[[], object], Callable[[Any], object]]] = ()
    _failed: Counter[tuple[torch.Size, ...]] = field(default_factory=Counter)
    _often: bool = False
    _recorded: int = 0

    def __post_init__(self) -> None:
        self.copies = tuple(tensor.detach().clone() for tensor in self.moving.tensors)
        unused = SLOW_GENERATORS - self.moving.drawn
        self.generators = [each for each in generators() if each[0] not in unused]

    def learn(self, step: TrainStep, batch: Batch) -> None:
        """Learns from a pass of a small batch what ranks exchange in each. Nothing of the pass is left."""
        if step.draft.exchange is None:
            return
        before = _Before(step, [(batch, 1.0)], self)
        with _eager(step):
            step.draft.exchange.learn(lambda: step.passes([(_copied(batch), 1.0)]))
        before.restore()

    def passes(self, step: TrainStep, parts: Sequence[Part]) -> torch.Tensor:
        """Does what `TrainStep.passes` does, in smaller parts if a micro batch runs out of memory.

        Raises:
            RanksLost: another rank has failed, or has ended.
        """
        if step.draft.exchange is not None:
            step.draft.exchange.begin()
        before, now = _Before(step, parts, self), list(parts)
        while True:
            now = self._cut_at_once(now)
            found = self._attempt(now, before, cut=len(now) > len(parts))
            if isinstance(found, torch.Tensor):
                return found
            now = found
            # The handler has ended, and with it the frames that held the failed step's tensors.
            self._clean()
            if self._recorded:
                self._keep()
            else:
                self._warn()

    def _attempt(self, parts: Sequence[Part], before: _Before, *, cut: bool) -> torch.Tensor | list[Part]:
        """Runs the passes. Returns their loss, or smaller parts with which the step begins again."""
        step, place = before.step, _NOWHERE
        failed: Exception | None = None
        if step.draft.exchange is not None:
            step.draft.exchange.attempt()
        try:
            with _eager(step) if cut else nullcontext():
                # User's code may take entries out of a container, which the next attempt needs.
                loss = step.passes([(_copied(part), weight) for part, weight in parts])
        except Exception as error:  # noqa: BLE001  # it is raised below, unless the step begins again
            failed = error
        try:
            if failed is not None:
                place = self._place(failed, parts, before)
            if self.votes is not None:
                place = self._agreed(self.votes, failed, place, parts, before)
            if failed is not None and place == _NOWHERE:
                raise failed
            if failed is not None:
                scrub(failed)
        finally:
            del failed  # it holds this frame
        return loss if place == _NOWHERE else [*parts[:place], *self._in_two(parts[place]), *parts[place + 1 :]]

    def _place(self, failed: Exception, parts: Sequence[Part], before: _Before) -> int:
        """Returns which part is to be cut after an error; _NOWHERE if none. Puts the state back if memory ran out."""
        step = before.step
        failure = classify(collect(failed, phase=step.phase), device_is_host=self.device.is_host)
        if failure.status is not Status.OUT_OF_MEMORY:
            return _NOWHERE
        place, objection = step.micro_batch - 1, before.objection()
        before.restore()
        if self.votes is not None:  # what the other ranks wait for needs memory
            clear_frames(failed)
            self._clean()
        if objection:
            failed.add_note(f"autofit: the micro batch was not split: {objection}")
            return _NOWHERE
        batch = parts[place][0]
        if not self._halves(parts[place]):
            return _NOWHERE
        self._failed[_shapes(batch)] += 1
        self._often = self._often or self._failed[_shapes(batch)] >= AT_ONCE
        if self.votes is None:
            self._count(batch_size(batch))
        return place

    def _agreed(
        self, votes: Votes, failed: Exception | None, place: int, parts: Sequence[Part], before: _Before
    ) -> int:
        """Returns which part all ranks cut, with the state put back; _NOWHERE if none failed, or the step ends here.

        Raises:
            RanksLost: the step ends on another rank.
        """
        exchange = before.step.draft.exchange
        assert exchange is not None, "`check_step` has seen it"
        if failed is not None:
            try:
                exchange.complete(len(parts))
            except Exception as error:
                failed.add_note(f"autofit: the other ranks wait until this one ends: {named_error(error)}")
                raise failed from error
        vote = 0 if failed is None else _FAILED if place == _NOWHERE else place + 1
        size = 0 if place == _NOWHERE else batch_size(parts[place][0])
        stuck = failed is None and before.objection() != ""
        most, barred, often, size = votes.most(vote * votes.count + votes.number, stuck, self._often, size)
        self._often, (vote, rank) = bool(often), divmod(most, votes.count)
        if vote == 0:
            return _NOWHERE
        before.restore()
        exchange.reset()
        if vote != _FAILED and not barred:
            self._count(size)
            return vote - 1
        if failed is None:
            raise votes.failed(rank)
        return _NOWHERE

    def _cut_at_once(self, parts: list[Part]) -> list[Part]:
        """Returns micro batches, in parts where enough of their shape have failed."""
        while self._often:
            halves = [self._halves(part) if self._failed[_shapes(part[0])] >= AT_ONCE else [] for part in parts]
            marks = [batch_size(part[0]) if each else 0 for part, each in zip(parts, halves, strict=True)]
            marks = marks if self.votes is None else self.votes.most(*marks)
            if not any(marks):
                break
            for size in filter(None, marks):
                self._count(size)
                self._keep()
            pairs = zip(parts, marks, strict=True)
            parts = [each for part, size in pairs for each in (self._in_two(part) if size else [part])]
        return parts

    def _in_two(self, part: Part) -> list[Part]:
        """Returns the halves of a micro batch. On ranks, what cannot be cut or the only half that counts twice."""
        found = self._halves(part) or [part]
        return found if len(found) > 1 or self.votes is None else [(batch, weight / 2) for batch, weight in found * 2]

    def _halves(self, part: Part) -> list[Part]:
        """Returns the halves of a micro batch with their weights; [] if it cannot be cut."""
        batch, weight = part
        try:
            size = batch_size(batch)
            halves = [each.batch for each in Cuttable.of(batch).cut([size - size // 2, size // 2])]
            weights = [(size - size // 2) / size, size // 2 / size]
            weights = weights if self.weighing is None else weights_of(self.weighing, halves)
        except WorkloadError:  # it has one sample, or is not like the batches that were checked
            return []
        return [(half, weight * share) for half, share in zip(halves, weights, strict=True) if share]

    def _count(self, size: int) -> None:
        now, known = datetime.now(UTC).isoformat(timespec="seconds"), self.splits
        self.splits = Splits(
            known.micro_batches + 1, max(known.largest_samples, size), known.first_at or now, last_at=now
        )

    def _clean(self) -> None:
        gc.collect()
        self.device.synchronize()
        self.device.release()

    def _keep(self) -> str:
        """Keeps what was cut, whenever its number has doubled. Returns why it was not kept, or ""."""
        if self.splits.micro_batches < 2 * self._recorded:
            return ""
        self._recorded = self.splits.micro_batches
        return self.record(self.splits) if self._leads else ""

    def _warn(self) -> None:
        lost = self._keep()
        if not self._leads:
            return
        then = f"It was not recorded, since {lost}" if lost else "The next search with this study leaves this plan out"
        warnings.warn(
            f"a micro batch of {self.splits.largest_samples} samples ran out of memory. It was cut in two and its step "
            "run again, with the same gradient up to rounding; where a pass draws random numbers, the parts draw other "
            f"ones. Later ones are counted in step.splits, without a warning. {then}: tune again after this training.",
            stacklevel=5,
        )

    @property
    def _leads(self) -> bool:
        """Whether this rank warns and keeps."""
        return self.votes is None or self.votes.number == 0


def _eager(step: TrainStep) -> AbstractContextManager[Any]:
    """Code that is compiled for the plan's micro batches is not compiled again for each size of a part."""
    return torch.compiler.set_stance("force_eager") if step.draft.compiled else nullcontext()


def _plain(batch: Batch) -> Sequence[torch.Tensor] | None:
    """Returns the tensors of a list or dict of nothing else, which is found quickly; None for another batch."""
    found = tuple(batch.values()) if type(batch) is dict else batch
    return found if type(batch) in (dict, list) and all(isinstance(each, torch.Tensor) for each in found) else None


def _tensors(batch: Batch) -> Sequence[torch.Tensor]:
    found = _plain(batch)
    return tuple(tensors(batch)) if found is None else found


def _copied(batch: Batch) -> Batch:
    return map_tensors(batch, lambda tensor: tensor) if _plain(batch) is None else batch.copy()


def _shapes(batch: Batch) -> tuple[torch.Size, ...]:
    return tuple(tensor.shape for tensor in _tensors(batch))
