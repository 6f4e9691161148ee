"""grows: memory that each step leaves behind."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator

from autofit.core.units import format_bytes
from autofit.doctor.diagnosis import Finding, Size
from autofit.doctor.findings.base import Detector, is_slow, largest_of, made, place_of, places_of
from autofit.doctor.graphs import NODE_BYTES
from autofit.doctor.holders import Holder
from autofit.doctor.observation import GROWING, Observation
from autofit.reports.sentences import counted


class Grows(Detector):
    """Tensors of each of the last steps that are still alive, held by a variable or a reference cycle."""

    id = "grows"
    about = "memory that each step leaves behind"

    def unchecked(self, observation: Observation) -> str:
        """Returns why not, if there were too few steps to call anything growth."""
        return _too_few(observation, GROWING)

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
                held, remedy = f"held by {holder}", "keep numbers instead (loss.item()), or tensors only while needed"
                if (view := observation.hidden.get(largest)) is not None:
                    held += f", which uses only {format_bytes(view.used_bytes)} of it"
                    remedy = "keep a copy of the part: tensor.clone() instead of the view"
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
                size = Size(host_bytes_per_step=host_bytes, basis="counted")
                grows = (
                    f"main memory grows by about {format_bytes(host_bytes)} per step, since each tensor keeps its "
                    f"graph of {counted(nodes, 'node')}"
                )
            yield Finding(
                id=self.id,
                what=f"{grows}: {made(observation, largest)}, {held}",
                remedy=remedy,
                places=(place_of(observation, largest, holder), *places_of(observation, handles)),
                size=size,
                evidence=_limits(observation, holder),
                minor=is_slow(observation, max(size_bytes, host_bytes)),
            )


class GraphKept(Detector):
    """Graphs of each of the last steps that still hold the activations of their forward pass."""

    id = "graph-kept"
    about = "activations of earlier steps, held by the graph of a tensor that is kept"

    def unchecked(self, observation: Observation) -> str:
        """Returns why not, if there were too few steps to call anything growth."""
        return _too_few(observation, GROWING)

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


class GraphGrows(Detector):
    """A graph that becomes longer in each step, as that of a sum of losses."""

    id = "graph-grows"
    about = "a graph that becomes longer in each step"

    def unchecked(self, observation: Observation) -> str:
        """Returns why not, if there were too few steps to call anything growth."""
        return _too_few(observation, GROWING + 1)

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding if the largest graph grew in each of the last steps."""
        nodes, holder = observation.watch.nodes, observation.longest
        kept = {each.variable for _, each, _ in _groups(observation) if each is not None and each.graph}
        if not observation.graph_rises or (kept and (holder is None or holder.variable in kept)):
            return  # `GraphKept` has found what the graph holds, which is more
        size_bytes = (nodes[-1] - nodes[-2]) * NODE_BYTES
        held = "a tensor that no variable holds" if holder is None else str(holder)
        yield Finding(
            id=self.id,
            what=(
                f"the graph of {held} grows by {counted(nodes[-1] - nodes[-2], 'node')} per step, about "
                f"{format_bytes(size_bytes)} of main memory"
            ),
            remedy="detach what is carried from step to step: state.detach(), or a sum of loss.item()",
            places=() if holder is None else (observation.place_of_longest(),),
            size=Size(host_bytes_per_step=size_bytes, basis="counted"),
        )


def _too_few(observation: Observation, least: int) -> str:
    steps = len(observation.watch.levels)
    return "" if steps >= least else f"{counted(steps, 'step')} could be watched; expected at least {least}"


def _unfreed(observation: Observation, handles: Iterable[int]) -> tuple[str, str]:
    """Returns why the activations of a graph are still there, and what to change, in words."""
    watch, wanted = observation.watch, set(handles)
    passes = [each.used_at for each in watch.saved if each.handle in wanted and each.used_at >= 0]
    sites = [each.site for each in watch.retained if any(each.begun <= used < each.ended for used in passes)]
    if sites:
        return f"retain_graph=True at {sites[0]} keeps", "carry it on as state.detach(), and remove retain_graph=True"
    return "no backward pass has used up", "compute it under torch.no_grad(), or keep loss.item() or tensor.detach()"


def _limits(observation: Observation, holder: Holder | None) -> tuple[str, ...]:
    """Returns that a list may have a limit which the watched steps do not reach, if a list it is."""
    if holder is None or not holder.size:
        return ()
    steps = len(observation.watch.levels)
    return (f"A list with room for more than {counted(steps, 'item')} looks the same: watch more steps to tell.",)


def _until_full(observation: Observation, bytes_per_step: int) -> str:
    left = observation.budget_bytes - observation.peak_bytes
    if bytes_per_step <= 0 or left <= 0:
        return ""
    return f" (full after {counted(left // bytes_per_step, 'step')})"


def _groups(observation: Observation) -> Iterator[tuple[list[int], Holder | None, bool]]:
    """Yields the allocations of one step that grow, by the variable that holds them; the last is whether by a cycle."""
    groups = defaultdict[Hashable, list[int]](list)
    holders = dict[Hashable, tuple[Holder | None, bool]]()
    for group, handles in observation.grown.items():
        holder, cyclic = observation.growers.get(group), group in observation.cycles
        key: Hashable = (holder.variable, holder.graph) if holder is not None else cyclic or group
        groups[key] += handles
        holders.setdefault(key, (holder, cyclic))
    for key, found in groups.items():
        yield found, *holders[key]
