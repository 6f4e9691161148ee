"""Memory that is alive at the peak of a step and never read again, by what keeps it."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from functools import partial

from autofit.core.units import format_bytes, format_names
from autofit.doctor.diagnosis import Bound, Finding, Place
from autofit.doctor.findings.base import Detector, at_peak, is_nothing, largest_of, made, place_of, places_of
from autofit.doctor.holders import Holder
from autofit.doctor.observation import Observation
from autofit.doctor.sites import Site
from autofit.doctor.what_if import Change, graphless, without_graph
from autofit.reports.sentences import counted

HISTORY = 2
"""Age in steps of a tensor from which the variable that keeps it keeps a history. Those of one step stay until the next
one replaces them."""
_DETACH = "detach what the next pass starts from, such as state.detach(), and remove retain_graph=True"
_DROPPED = "leave out the gradients that are zeroed (see gradient-dropped); then nothing needs retain_graph=True here"
_CHAIN = (
    "if the gradient may stop there, detach what the next forward pass starts from, such as state.detach(), and remove "
    "retain_graph=True; else call backward() once, on the sum of the losses: the same gradient in less time"
)
_ONE_PASS = (
    "call backward() once, on the sum of the losses, which saves at least this; or, if the losses need passes of their "
    "own, leave out retain_graph=True in the last one"
)
COPY = "aten::clone"
_LATER = "delete it, unless it is for later, such as the best weights: these can wait in main memory (tensor.cpu())"
NAMED = 2
"""Maximum number of further variables in a sentence."""


class DeadAtPeak(Detector):
    """Tensors that a variable of the user's keeps through the peak, although nothing reads them any more."""

    id = "dead-at-peak"
    about = "memory at the peak that a variable keeps and nothing reads again"

    def unchecked(self, observation: Observation) -> str:
        """Returns why not, if the steps differ so much that the peak did not come again."""
        if observation.asked:
            return ""
        if len(observation.watch.levels) < observation.steps:
            return "no further step came, in which it is asked who holds what at the peak"
        return "the last step did not reach the operator at which the one before peaked"

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields a finding for each variable."""
        variables = defaultdict[str, list[int]](list)
        unused = {handle for handle in observation.unused if not observation.in_variable(handle)}
        others = unused | observation.retained_handles
        viewed = {str(view.holder) for view in observation.hidden.values() if view.holder is not None}  # by `ViewHolds`
        used = {each.handle for each in observation.watch.saved if each.used_at >= 0}  # released with their node
        unread = set(observation.views.unread)  # a script's next step may have read what this one has kept
        for handle, holder in observation.held.items():
            bounded = any(each.bounded for each in (holder, *holder.others))
            if handle not in unread or bounded or holder.leaf:
                continue
            released = holder.graph and handle in used
            if not (handle in others or observation.grows(handle) or released or str(holder) in viewed):
                variables[holder.variable].append(handle)
        for alike, handles in _joined(observation, variables.values()):
            is_history = any(observation.watch.steps[each] <= observation.step - HISTORY for each in alike & unread)
            if is_history or observation.read_in_later_steps(alike):
                continue
            # What is kept from one micro batch is kept while the next one runs, until it is replaced.
            saved_bytes = observation.saved_bytes(ends=alike)
            if is_nothing(observation, saved_bytes):
                continue
            largest = largest_of(observation, handles)
            holder = observation.held[largest]
            holders = {held.variable: held for each in handles if (held := observation.held[each]) is not holder}
            holders.pop(holder.variable, None)
            more = len(handles) - 1 - len(holders)
            smaller = f", with {counted(more, 'smaller tensor')}" if more else ""
            beside = format_names([str(each) for each in holders.values()], NAMED)
            smaller += f"; the same holds for {beside}" if holders else ""
            elsewhere = [str(each) for each in holder.others if each.where != holder.where]
            also = f"; also held by {format_names(elsewhere, NAMED)}" if elsewhere else ""
            yield Finding(
                id=self.id,
                what=(
                    f"{holder} keeps {made(observation, largest)}, through the peak, where no "
                    f"watched step reads it again{smaller}{also}"
                ),
                remedy=_release(observation, handles, [holder, *holders.values()]),
                places=(place_of(observation, largest, holder), *places_of(observation, handles)),
                evidence=("The peak is lower by this if all of them are released.",) if holders else (),
                **at_peak(observation, saved_bytes),
            )


class RetainGraph(Detector):
    """Activations that `retain_graph=True` keeps for a second backward pass that never comes."""

    id = "retain-graph"
    about = "activations kept by retain_graph=True for a second pass that never comes"

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding for each backward pass."""
        for site, kept in observation.retained.items():
            handles = [handle for handle in kept if not observation.in_variable(handle)]  # the others stay without it
            saved_bytes = observation.saved_bytes(ends_at=observation.ended_by(site, kept))
            if is_nothing(observation, saved_bytes):
                continue
            tensors = counted(len(handles), "tensor")
            what, remedy = (
                f"but no second pass uses the graph, which keeps {tensors} through the peak",
                "remove retain_graph=True; if torch then reports a second use, detach what is shared",
            )
            if later := observation.used_again.get(site):
                what = f"but later passes use only a part of the graph; the rest, {tensors}, is kept through the peak"
                remedy = _when_used_again(observation, site, later)
            yield Finding(
                id=self.id,
                what=f"the backward pass at {site} has retain_graph=True, {what}{_of_graph(observation, handles)}",
                remedy=remedy,
                places=_of_pass(observation, site, handles),
                **at_peak(observation, saved_bytes),
            )


def _when_used_again(observation: Observation, site: Site, later: Set[bool]) -> str:
    """Returns what to change if later passes use a part of the graph that the pass at a line retains, in words.

    `later` says whether these passes are in the same step.
    """
    watch = observation.watch
    if any(each.site == site and each.parameter in observation.optimized for each in watch.dropped):
        return _DROPPED
    if later != {True}:
        return _DETACH
    ends = {each.step: each.ended for each in reversed(watch.retained) if each.site == site}  # of the first
    longer = any(each.used_at >= 0 and watch.born[each.handle] > ends.get(each.step, math.inf) for each in watch.saved)
    return _CHAIN if longer else _ONE_PASS


class SavedUnused(Detector):
    """Tensors saved for a backward pass that never comes, as in an evaluation or a teacher without `no_grad`."""

    id = "saved-unused"
    about = "activations saved for a backward pass that never comes"

    def unchecked(self, observation: Observation) -> str:
        """Returns why not, if what autograd saves was not observed."""
        return "" if observation.watch.saves else "the step uses torch.func, which refuses hooks on saved tensors"

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields a finding for each line of the user's code that calls such a pass."""
        yield from self._found(observation)
        if (higher := observation.higher) is not None and not observation.unused:
            text = f"This is in watched step {higher.step}, whose peak is {format_bytes(higher.peak_bytes)}."
            yield from (each.model_copy(update={"evidence": (text,)}) for each in self._found(higher))

    def _found(self, observation: Observation) -> Iterator[Finding]:
        created = {each.site for each in observation.watch.saved if each.created}
        for site, handles in _passes(observation).items():
            ended = observation.ended_by(site, ()) if site in created else {}
            saved_bytes = observation.saved_bytes(
                ends_at=ended | {each: observation.watch.reads[each] for each in handles}
            )
            if is_nothing(observation, saved_bytes):
                continue
            count = counted(len(handles), "tensor")
            bound: Bound = "" if site in created else "at most"  # a pass without a graph runs a little differently
            what, remedy = f"keeps {count} for a backward pass that never comes", "run it under torch.no_grad()"
            if site in created:
                what = f"has create_graph=True, but no later pass uses the graph that it makes, which keeps {count}"
                what += _of_graph(observation, handles)
                remedy = "remove create_graph=True there: only a gradient of a gradient needs it"
            else:
                by_size = sorted(handles, key=lambda handle: -observation.watch.sizes[handle])
                module = next((name for each in by_size if (name := observation.module_of(each))), "")
                inside = f", in modules such as {module}" if module else ""
                what = f"{what}{inside}{_of_graph(observation, handles)}"
            yield Finding(
                id=self.id,
                what=f"the pass at {site} {what}",
                remedy=remedy,
                places=_of_pass(observation, site, handles),
                **at_peak(observation, saved_bytes, bound),
            )

    def change(self, observation: Observation, finding: Finding) -> Change | None:
        """Returns that pass without `create_graph=True`, or its modules' calls under `torch.no_grad`.

        None if it runs outside any module.
        """
        line, watch = finding.places[0].line, observation.watch
        created = [each for each in watch.created if each.step == observation.step]
        found = {n: each for n, each in enumerate(created, 1) if observation.place_at(each.site).line == line}
        if found:
            begun, ended = found[min(found)].begun, found[min(found)].ended
            again = any(watch.born[each.handle] < begun and each.used_at >= ended for each in watch.saved)
            return Change(f"the pass at {line} without create_graph=True", partial(graphless, found.keys(), again))
        passes = _passes(observation).items()
        handles = next((each for site, each in passes if observation.place_at(site).line == line), ())
        calls = observation.unused_calls(handles)
        if not calls:
            return None
        names = ", ".join(dict.fromkeys(observation.name_of(module) for module, _ in calls))
        return Change(f"{names} under torch.no_grad()", partial(without_graph, calls))


def _graph(observation: Observation, handles: Iterable[int]) -> str:
    """Returns which variable keeps the graph of some allocations; "" if none is known."""
    found = (observation.held.get(handle) for handle in handles)
    return next((str(holder) for holder in found if holder is not None and holder.graph), "")


def _of_pass(observation: Observation, site: Site, handles: Sequence[int]) -> tuple[Place, ...]:
    """Returns the line of a pass with what keeps its graph, and where the largest of its allocations were made."""
    return observation.place_at(site, holder=_graph(observation, handles)), *places_of(observation, handles)


def _of_graph(observation: Observation, handles: Iterable[int]) -> str:
    return f"; {graph} holds them" if (graph := _graph(observation, handles)) else ""


def _joined(observation: Observation, groups: Iterable[list[int]]) -> list[tuple[set[int], list[int]]]:
    """Returns groups of allocations, after all that were made in the same way. Those that share such a way are one.

    The record does not say which of them is which in another step.
    """
    found = list[tuple[set[int], list[int]]]()
    for handles in groups:
        alike, same = set(observation.alike(handles)), handles
        for each in [each for each in found if each[0] & alike]:
            found.remove(each)
            alike, same = each[0] | alike, each[1] + same
        found.append((alike, same))
    return found


def _release(observation: Observation, handles: Iterable[int], holders: Sequence[Holder]) -> str:
    """Returns how to release what variables hold at the peak, in words. What was copied may be meant for later."""
    in_backward = observation.peak_phase == "backward"
    when = "before the backward pass, after its last use" if in_backward else "after the last use"
    holder = holders[0]
    if holder.is_attribute:
        return f"release {format_names([f'`{each.path}`' for each in holders], NAMED)} {when}, or do not keep it"
    if all(observation.watch.operators[each] == COPY for each in handles):
        return _LATER
    same = (each for one in holders for each in (one, *one.others) if each.where == holder.where)
    names = ", ".join(dict.fromkeys(each.name for each in same))
    if holder.path != holder.name:  # the object that holds it may be needed, as for outputs.loss.backward()
        return f"keep only the part that is still read (of outputs, the loss), or `del {names}` {when}"
    return f"delete it before the peak (`del {names}` {when}), or do not keep it"


def _passes(observation: Observation) -> dict[Site, list[int]]:
    """Returns what was saved in vain by the line of the pass."""
    found, whole = defaultdict[str, list[int]](list), dict[str, Site]()
    for handle, site in observation.unused.items():
        if observation.in_variable(handle):
            continue  # it would stay without the graph
        line = site.user or site.library
        found[line].append(handle)
        whole.setdefault(line, site if not site.user else Site(site.user))
    return {whole[line]: handles for line, handles in found.items()}
