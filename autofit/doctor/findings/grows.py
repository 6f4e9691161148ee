"""grows: memory that each step leaves behind."""

import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import ClassVar

from autofit.core.units import format_bytes
from autofit.doctor.diagnosis import Finding, Place, Size
from autofit.doctor.findings.base import PART, WHOLE, Detector, is_slow, largest_of, made, place_of, places_of
from autofit.doctor.graphs import NODE_BYTES
from autofit.doctor.holders import Holder
from autofit.doctor.observation import GROWING, Observation
from autofit.doctor.sites import NOWHERE
from autofit.reports.sentences import counted


class _Growth(Detector):
    """What each step leaves behind. `least` is the smallest number of steps in which that shows."""

    least: ClassVar[int] = GROWING

    def unchecked(self, observation: Observation) -> str:
        """Returns why not, if there were too few steps to call anything growth."""
        steps = len(observation.watch.levels)
        if steps < self.least:
            return f"{counted(steps, 'step')} could be watched; expected at least {self.least}"
        nothing = not (observation.grown or observation.carried or observation.lengthened)
        return "the script had ended, and what its functions had kept was gone" if observation.over and nothing else ""


class Grows(_Growth):
    """Tensors of each of the last steps that are still alive, held by a variable or a reference cycle."""

    id = "grows"
    about = "memory that each step leaves behind"

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields a finding for each variable, and one for reference cycles."""
        groups = list(_groups(observation))
        kept = {holder.variable for _, holder, _ in groups if holder is not None and holder.graph}  # by `GraphKept`
        for handles, holder, cyclic in groups:
            if holder is not None and (holder.graph or holder.bounded or holder.variable in kept):
                continue
            largest = largest_of(observation, handles)
            size_bytes = observation.size_of(handles)
            if holder is not None:
                held, remedy = f"held by {holder}", _instead(observation, largest, holder)
                if (view := observation.hidden.get(largest)) is not None:
                    held += f", which uses only {format_bytes(view.used_bytes)} of it"
                    remedy = WHOLE if observation.is_spacious(largest) else PART
                held += _others(observation, handles, holder)
            elif cyclic:
                held = "held by objects that refer to each other until Python's garbage collection runs"
                remedy = "break the cycle: an object that holds itself, or a closure that holds its own function"
            else:
                held = "held by no variable that was found: an extension, a library's object or a global registry"
                remedy = "look for a list or table that this line adds to in each step"
            nodes = 0 if holder is None else holder.nodes
            host_bytes = nodes * NODE_BYTES
            size = Size(bytes_per_step=size_bytes, basis="counted")
            grows = f"memory grows by {format_bytes(size_bytes)} per step{_until_full(observation, size_bytes)}"
            if host_bytes > size_bytes:
                size = Size(host_bytes_per_step=host_bytes, basis="counted", bound="at least")
                grows = (
                    f"main memory grows by at least {format_bytes(host_bytes)} per step, since each tensor keeps its "
                    f"graph of {counted(nodes, 'node')}"
                )
            yield Finding(
                id=self.id,
                what=f"{grows}: {_of(observation, handles, largest)}, {held}",
                remedy=remedy,
                places=(
                    place_of(observation, largest, holder),
                    *_kept_at(observation, largest),
                    *places_of(observation, handles),
                ),
                size=size,
                evidence=_limits(observation, holder),
                minor=is_slow(observation, max(size_bytes, host_bytes)),
            )
        for handle, (holder, size_bytes) in observation.lengthened.items():
            yield Finding(
                id=self.id,
                what=(
                    f"memory grows by {format_bytes(size_bytes)} per step{_until_full(observation, size_bytes)}: "
                    f"{made(observation, handle)}, held by {holder}, which each step makes anew from the one before"
                ),
                remedy="keep a metric of what is added to it instead, such as a sum and a count",
                places=(place_of(observation, handle, holder),),
                size=Size(bytes_per_step=size_bytes, basis="counted"),
                evidence=("A tensor that is cut to a limit looks the same until it has it: watch more steps to tell.",),
                minor=is_slow(observation, size_bytes),
            )


class GraphKept(_Growth):
    """Graphs of each of the last steps that still hold the activations of their forward pass."""

    id = "graph-kept"
    about = "activations of earlier steps, held by the graph of a tensor that is kept"

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields a finding for each variable whose graph grows."""
        for handles, holder, _ in _groups(observation):
            if holder is None or not holder.graph or holder.bounded:
                continue
            largest = largest_of(observation, handles)
            size_bytes = observation.size_of(handles)
            kept, remedy = _unfreed(observation, handles)
            yield Finding(
                id=self.id,
                what=(
                    f"memory grows by {format_bytes(size_bytes)} per step{_until_full(observation, size_bytes)}: "
                    f"activations such as {made(observation, largest)}, held by {holder}, which {kept}"
                ),
                remedy=remedy,
                places=(place_of(observation, largest, holder), *places_of(observation, handles)),
                size=Size(bytes_per_step=size_bytes, basis="counted"),
                evidence=_limits(observation, holder),
                minor=is_slow(observation, size_bytes),
            )


class GraphGrows(_Growth):
    """A graph that becomes longer in each step, as that of a sum of losses."""

    id = "graph-grows"
    about = "a graph that becomes longer in each step"
    least = GROWING + 1

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields a finding for each variable whose graphs have nodes of each step."""
        kept = {each.variable for _, each, _ in _groups(observation) if each is not None and each.graph}
        for each in observation.carried:
            if kept and (each.holder is None or each.holder.variable in kept):
                continue  # `GraphKept` has found what the graph holds, which is more
            size_bytes = each.nodes * NODE_BYTES
            held = "a tensor that no variable holds" if each.holder is None else str(each.holder)
            several = f"the graphs of {each.tensors} tensors, such as {held}, grow"
            yield Finding(
                id=self.id,
                what=(
                    f"{several if each.tensors > 1 else f'the graph of {held} grows'} by "
                    f"{counted(each.nodes, 'node')} per step, at least {format_bytes(size_bytes)} of main memory"
                ),
                remedy=(
                    "detach what is carried from step to step: state.detach(), a sum of loss.item(), or an average of "
                    "weights under torch.no_grad()"
                ),
                places=() if each.holder is None else (Place(holder=str(each.holder)),),
                size=Size(host_bytes_per_step=size_bytes, basis="counted", bound="at least"),
            )


def _of(observation: Observation, handles: Sequence[int], largest: int) -> str:
    """Returns what a step leaves behind, where it was made and where the tensor that keeps it, in words."""
    several = f"{len(handles)} tensors per step, the largest " if len(handles) > 1 else ""
    kept = "".join(f", kept from {place.line} on" for place in _kept_at(observation, largest))
    return f"{several}{made(observation, largest)}{kept}"


def _kept_at(observation: Observation, handle: int) -> Iterator[Place]:
    """Yields the line that made the tensor which is kept, if another one has made its memory."""
    site = observation.kept_at.get(handle, NOWHERE)
    if site.user and site != observation.watch.sites[handle]:
        yield observation.place_at(site)


def _others(observation: Observation, handles: Sequence[int], holder: Holder) -> str:
    """Returns who else holds some allocations, in words: a holder for each container beside that of `holder`."""
    found, held = dict[str, str](), defaultdict[str, list[int]](list)
    for handle in handles:
        if (each := observation.growers.get(handle)) is not None and each.container != holder.container:
            found[each.container] = each.path
            held[each.container].append(handle)
    others = [f"`{path}` ({format_bytes(observation.size_of(held[name]))})" for name, path in found.items()]
    more = [f"{len(others) - 3} more"] if len(others) > 3 else []
    return "".join(f", and by {each}" for each in (*others[:3], *more))


def _unfreed(observation: Observation, handles: Iterable[int]) -> tuple[str, str]:
    """Returns why the activations of a graph are still there, and what to change, in words."""
    watch, wanted = observation.watch, set(handles)
    passes = [each.used_at for each in watch.saved if each.handle in wanted and each.used_at >= 0]
    sites = [each.site for each in watch.retained if any(each.begun <= used < each.ended for used in passes)]
    if sites:
        return f"retain_graph=True at {sites[0]} keeps", "carry it on as state.detach(), and remove retain_graph=True"
    if passes:  # they are trained, too: what keeps them is an operator of another graph
        lines = sorted({str(each.site) for each in watch.saved if each.handle in wanted and each.used_at < 0})
        where = f" before it is kept, at {lines[0]}" if lines else ""
        return "no backward pass has used up", f"detach it (tensor.detach()){where}"
    return "no backward pass has used up", "compute it under torch.no_grad(), or keep loss.item() or tensor.detach()"


def _instead(observation: Observation, handle: int, holder: Holder) -> str:
    """Returns what to keep instead of a tensor, in words. What is in a buffer or a cache is not a loss."""
    form = observation.watch.forms[handle]
    if holder.nodes or (form is not None and math.prod(form[1]) == 1):
        return "keep numbers instead (loss.item()), or tensors only while needed"
    return "keep a metric of such tensors, or the last ones alone, as in deque(maxlen=...)"


def _limits(observation: Observation, holder: Holder | None) -> tuple[str, ...]:
    """Returns that a container may have a limit which the watched steps do not reach, if there is one."""
    if holder is None or not (holder.size or (holder.path.endswith("]") and not holder.graph)):
        return ()
    kind = "list" if holder.size else "dict"
    room = f"A {kind} with room for more than {counted(len(observation.watch.levels), 'item')}"
    return (f"{room}, such as a buffer or a cache, looks the same until it is full: watch more steps to tell.",)


def _until_full(observation: Observation, bytes_per_step: int) -> str:
    left = observation.budget_bytes - observation.peak_bytes
    if bytes_per_step <= 0 or left <= 0:
        return ""
    return f" (full after {counted(left // bytes_per_step, 'step')})"


def _groups(observation: Observation) -> Iterator[tuple[list[int], Holder | None, bool]]:
    """Yields the allocations of one step that grow, by the variable that holds them; the last is whether by a cycle."""
    groups = defaultdict[Hashable, list[int]](list)
    holders = dict[Hashable, tuple[Holder | None, bool]]()
    # The largest first: its holder is named, with as many nodes as any of them keeps.
    sizes, grown = observation.watch.sizes, observation.grown.items()
    for group, handles in sorted(grown, key=lambda each: -sizes[largest_of(observation, each[1])]):
        holder, cyclic = observation.growers.get(largest_of(observation, handles)), group in observation.cycles
        key: Hashable = (holder.variable, holder.graph) if holder is not None else cyclic or group
        groups[key] += handles
        first, _ = holders.setdefault(key, (holder, cyclic))
        if holder is not None and first is not None and holder.nodes > first.nodes:
            holders[key] = (replace(first, nodes=holder.nodes), cyclic)
    for key, found in groups.items():
        yield found, *holders[key]
