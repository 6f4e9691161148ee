"""Observation: what the watched steps of a training show, and the questions that findings ask of it."""

import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import torch

from autofit import devices
from autofit.core.account import Account
from autofit.core.units import format_bytes
from autofit.devices.base import Device
from autofit.doctor.diagnosis import Place
from autofit.doctor.holders import Holder
from autofit.doctor.seen import Saved
from autofit.doctor.sites import Site
from autofit.doctor.watch import Watch
from autofit.doctor.what_if import WhatIf
from autofit.memory.allocator.settings import Settings
from autofit.memory.lifetimes import Gap, changed, step_of
from autofit.memory.peak import memory_use
from autofit.memory.profile import points_of
from autofit.memory.trace import Kind, Trace
from autofit.tracing.trace_assembly import Assembly, assembled

STEPS = 6
"""Least and usual number of watched steps, after one that is not. The last but one is judged; the last repeats it up to
the peak."""
GROWING = 4
"""Fewest watched steps of which each must have left something behind before that is called growth. Warm-up tables, the
state of an optimizer and a short list of last outputs do not."""
HIGHER = 1.1
"""How much higher the peak of another step must be to be judged too, by ratio."""
PASSING = (Kind.ACTIVATION, Kind.TEMPORARY)
"""Kinds of allocations that should end with the step that made them."""

Likeness = tuple[int, str, Site, int, int]
"""What an allocation has in common with that of another step: steps ago, operator, site, module and size."""


@dataclass(frozen=True, slots=True)
class View:
    """What is used of an allocation.

    Attributes:
        used_bytes: bytes that its views reach, at most.
        holder: the variable that holds a view; None if none was found.
    """

    used_bytes: int
    holder: Holder | None


@dataclass(slots=True)
class Carried:
    """Graphs that are carried from step to step.

    Attributes:
        holder: a tensor with such a graph; None if no variable holds it.
        tensors: number of such tensors in its variable.
        nodes: number of nodes that a step has added to them.
    """

    holder: Holder | None
    tensors: int = 0
    nodes: int = 0


@dataclass
class Observation:
    """The watched steps.

    Attributes:
        watch: the record.
        account: how the device accounts for memory.
        budget_bytes: memory that the training may use.
        steps: number of steps to watch.
        held: who holds the allocations that were alive at the peak and never read again, by handle.
        grown: the allocations that each of the last steps left, by what made them; the first is of the last step but
            one.
        growers: who holds the allocations of `grown`, by handle, as far as the user's code does.
        kept_at: where the last tensor was made that keeps each of them, such as a view, by handle, as far as known.
        cycles: the groups of `grown` that a garbage collection released.
        asked: whether it is known who holds what at the peak.
        over: whether the functions that trained have returned, and their variables are gone.
        carried: the graphs that have nodes of each step, at the end.
        lengthened: the allocations that each step has made anew from the one before, and larger; with the variable that
            holds each and the bytes that a step adds.
        what_if: runs further steps with changes; None if the steps cannot be run again.
        hidden: the allocations of which views outlive their step and use a part only.
        frozen_states: the optimizer states of parameters that are not trained any more, by id of the parameter.
        sources: who holds the float64 operands of `Watch.widened`, by handle, as far as the user's code does.
        constants: the tensors of these operands that are still there, if nothing else brings float64 in.
        device: the device of the training.
        peaks: `Device.peaks` at the end of the last step.
        rested: see `Scope.resting`; empty if the model was given in training mode.
    """

    watch: Watch
    account: Account
    budget_bytes: int
    steps: int = STEPS
    held: Mapping[int, Holder] = field(default_factory=dict)
    grown: Mapping[tuple[str, Site], tuple[int, ...]] = field(default_factory=dict)
    growers: Mapping[int, Holder] = field(default_factory=dict)
    kept_at: Mapping[int, Site] = field(default_factory=dict)
    cycles: frozenset[tuple[str, Site]] = frozenset()
    asked: bool = False
    over: bool = False
    carried: Sequence[Carried] = ()
    lengthened: Mapping[int, tuple[Holder, int]] = field(default_factory=dict)
    what_if: WhatIf | None = None
    hidden: Mapping[int, View] = field(default_factory=dict)
    frozen_states: Mapping[int, Sequence[int]] = field(default_factory=dict)
    sources: Mapping[int, Holder] = field(default_factory=dict)
    constants: Sequence[torch.Tensor] = ()
    device: Device = field(default_factory=devices.host)
    peaks: tuple[int, int] | None = None
    rested: Mapping[torch.nn.Module, Site] = field(default_factory=dict)
    _views: "_Views | None" = None

    @property
    def further(self) -> WhatIf:
        """What runs further steps, for a kind of finding that needs them."""
        assert self.what_if is not None, "a detector with `runs` is skipped without"
        return self.what_if

    @property
    def step(self) -> int:
        """The step that is judged."""
        return self.views.step

    @property
    def views(self) -> "_Views":
        """The judged step as a trace."""
        if self._views is None:
            self._views = _Views(self.watch, self.account, min(self.watch.step, self.steps) - 1)
        return self._views

    @property
    def whole(self) -> Trace:
        """All steps as a trace. That of `views`, which is made before the last step, may lack it."""
        return _Views(self.watch, self.account, self.step).whole

    @property
    def peak_bytes(self) -> int:
        """The peak of the judged step, in live bytes."""
        return self.views.peak_bytes

    @property
    def peak_phase(self) -> str:
        """The phase in which the judged step peaks, such as "backward"."""
        return self.views.use.peak.name.rpartition(" ")[2]

    @property
    def highest(self) -> tuple[int, int]:
        """The watched step with the highest peak of what the steps have made, and that peak in bytes."""
        whole, peaks, step, live = assembled(self.watch), Counter[int](), 0, 0  # `views` may lack the last step
        ready = {whole.numbers[each] for each in self.watch.outside if each in whole.numbers}  # made at other times
        begins = {whole.place(mark.event): int(mark.name.split(" ")[1]) for mark in self.watch.marks}
        for place, event in enumerate(whole.events):
            step = begins.get(place, step)
            size = 0 if max(event, ~event) in ready else whole.tensors.sizes[max(event, ~event)]
            live += size if event >= 0 else -size
            peaks[step] = max(peaks[step], live)
        peaks[self.steps + 1] = 0  # its first event may come before the end of the observation
        return max(peaks.items(), key=lambda each: each[1], default=(self.step, self.peak_bytes))

    @cached_property
    def higher(self) -> "Observation | None":
        """The same with the highest step judged, if that is another one; who holds what at its peak is unknown."""
        step, highest_bytes = self.highest
        if step == self.step or highest_bytes <= HIGHER * self.peak_bytes:
            return None
        views = _Views(self.watch, self.account, step)
        return Observation(self.watch, self.account, self.budget_bytes, self.steps, grown=self.grown, _views=views)

    def saved_bytes(
        self,
        *,
        ends: Iterable[int] = (),
        ends_at: Mapping[int, int] | None = None,
        gaps: Iterable[tuple[int, int, int]] = (),
        without: Iterable[int] = (),
        sizes: Mapping[int, int] | None = None,
    ) -> int:
        """Returns by how much the peak would be lower.

        Args:
            ends: allocations that are released after their last read.
            ends_at: allocations that are released at other times, as numbers of the recorder's events.
            gaps: allocations that are released for a while: handle, and numbers of the recorder's events.
            without: allocations that are never made.
            sizes: other sizes of some allocations.
        """
        views = self.views
        number, place = views.assembly.numbers, views.place
        at = {each: self.watch.reads[each] for each in ends} | dict(ends_at or {})
        released = {number[each]: place(event) for each, event in at.items() if each in number}
        early = {each: end for each, end in released.items() if end > views.initial}
        away = [Gap(number[handle], place(first), place(last)) for handle, first, last in gaps if handle in number]
        gone = {number[handle] for handle in without if handle in number} | (released.keys() - early.keys())
        other = {number[handle]: size for handle, size in (sizes or {}).items() if handle in number}
        now = changed(views.trace, ends=early, gaps=away, without=gone, sizes=other)
        return views.peak_bytes - memory_use(now, self.account).allocated_bytes

    def needless(
        self, gradients: Iterable[int], sums: Container[tuple[int, int]] = ()
    ) -> tuple[set[int], dict[int, int]]:
        """Returns the allocations that are not made if some gradients are not computed, and when others are released.

        Without these gradients, operators of a backward pass are not run if only such ones read their results. What was
        saved for them alone is released when nothing but the graph holds it, as a number of the recorder's events.
        The same holds for `sums`: operators, by number, that add to an allocation what is not needed.
        """
        watch, gone = self.watch, set(gradients)
        ends = {~event: place for place, event in enumerate(watch.events) if event < 0}
        marks = [mark.event for mark in watch.marks] + [len(watch.events)]
        needed, used, unused = set[int](), set[int](), set[int]()
        passes = dict[int, int]()  # the end of the last pass that reads each of `unused`
        for ran in reversed(watch.ran):
            if not ran.backward:
                needed.update(ran.reads)
                continue
            stop = marks[bisect_left(marks, ran.event)]
            wanted = {
                each
                for each in (*ran.made, *ran.results)
                if each not in gone
                and (ran.number, each) not in sums
                and (each in needed or (ends.get(each, stop) >= stop if each in ran.made else self._lasts(each)))
            }
            if wanted:
                needed.update(ran.reads)
                used.update(ran.reads)
                gone.update(each for each in ran.results if ran.masked and each in ran.made and each not in wanted)
            else:
                gone.update(ran.made)
                unused.update(ran.reads)
                for each in ran.reads:
                    passes.setdefault(each, stop)
        ended = {
            each for each in unused - used - gone - watch.outside if ends.get(each, len(watch.events)) < passes[each]
        }
        return gone, {
            each: watch.let_go[each]
            for each in ended & watch.let_go.keys()
            if watch.kinds[each] in (*PASSING, Kind.BATCH)
        }

    def _lasts(self, handle: int) -> bool:
        return self.watch.kinds[handle] not in PASSING

    def alike(self, handles: Iterable[int]) -> list[int]:
        """Returns the allocations of all steps that some lines have made in the same way as these, with these."""
        ways = {self._ways[each] for each in handles}
        return [handle for handle, way in enumerate(self._ways) if way in ways]

    @cached_property
    def _ways(self) -> list[object]:
        """How each allocation was made, by handle."""
        watch = self.watch
        return list(zip(watch.operators, watch.sites, watch.origins, watch.forms, self._phases, strict=True))

    def read_in_later_steps(self, handles: Iterable[int]) -> bool:
        """Returns whether one of these was read in a later step than its own, as an epoch's outputs at its end."""
        watch = self.watch
        return any(bisect_left(watch.ends, watch.read_by[each]) >= watch.steps[each] for each in handles)

    @cached_property
    def _phases(self) -> list[str]:
        """The phase in which each allocation was made, by handle. Operators of a backward pass have a forward line."""
        found, marks = [""] * len(self.watch.sizes), iter([*self.watch.marks, None])
        phase, following = "", next(marks)
        for place, event in enumerate(self.watch.events):
            while following is not None and following.event <= place:
                phase, following = following.name.rpartition(" ")[2], next(marks)
            if event >= 0:
                found[event] = phase
        return found

    def size_of(self, handles: Iterable[int]) -> int:
        """Returns the bytes of some allocations, as the device's allocator counts them."""
        sizes = [self.watch.sizes[handle] for handle in set(handles)]
        if self.account.allocator == "host":
            return sum(sizes)
        settings = Settings.parse(self.account.settings)
        return sum(settings.rounded(size) for size in sizes)

    def module_of(self, handle: int) -> str:
        """Returns the qualified name of the module in whose pass an allocation was made; "" for none."""
        origin = self.watch.origins[handle]
        return self.watch.modules.names[origin] if origin >= 0 else ""

    def form_of(self, handle: int) -> str:
        """Returns the type and shape of an allocation's tensor, such as "float32 [8192, 50257]", or its operator.

        A tensor may need only a part of its storage, such as the result of `F.mse_loss` on the CPU.
        """
        form, size_bytes = self.watch.forms[handle], self.watch.sizes[handle]
        if form is None:
            return f"memory of {self.watch.operators[handle]}"
        text = f"{str(form[0]).removeprefix('torch.')} {list(form[1])}"
        return f"{text} in a storage of {format_bytes(size_bytes)}" if self.is_spacious(handle) else text

    def is_spacious(self, handle: int) -> bool:
        """Returns whether the tensor that an operator returned uses less than half of its storage."""
        form, size_bytes = self.watch.forms[handle], self.watch.sizes[handle]
        used_bytes = 0 if form is None else math.prod(form[1]) * form[0].itemsize
        return form is not None and size_bytes - used_bytes > size_bytes / 2 > 512

    def grows(self, handle: int) -> bool:
        """Returns whether an allocation is one of a group of `grown`."""
        return (self.watch.operators[handle], self.watch.sites[handle]) in self.grown

    def in_variable(self, handle: int) -> bool:
        """Returns whether a variable of the user's keeps an allocation at the peak, and not only a graph."""
        holder = self.held.get(handle)
        return holder is not None and not holder.graph

    @cached_property
    def unused(self) -> dict[int, Site]:
        """The allocations that were saved for a backward pass that never came, with the line of their forward pass.

        That is the outermost call of a module of which nothing was used. Of earlier steps, such as one with an
        evaluation whose result is kept, these are what is alive at the peak.
        """
        used, calls = {each.handle for each in self.watch.saved if each.used_at >= 0}, self.used_calls
        known, second, batches = self.views.assembly.numbers, self.second_uses, set(self.alike(self.kept_batches))
        return {
            each.handle: each.site
            if each.created
            else next((self.watch.calls[one].site for one in self._around(each) if one not in calls), each.site)
            for each in self.watch.saved
            if (each.step == self.step or (each.step < self.step and known.get(each.handle) in self.views.alive))
            and each.handle not in used
            and not (each.created and each.site in second)
            and not self.grows(each.handle)
            and each.handle in known
            and (
                each.handle in batches
                or (each.handle not in self.watch.outside and self.watch.kinds[each.handle] in PASSING)
            )
        }

    @cached_property
    def second_uses(self) -> set[Site]:
        """The lines of passes with `create_graph=True` that made a graph which another pass has used."""
        return {each.site for each in self.watch.saved if each.created and each.used_at >= 0}

    def _around(self, saved: Saved) -> Iterator[int]:
        """Yields the calls of modules in which a tensor was saved, the outermost first."""
        found, call = list[int](), saved.call
        while call >= 0:
            found.append(call)
            call = self.watch.calls[call].outer
        return reversed(found)

    @cached_property
    def used_calls(self) -> set[int]:
        """The calls of modules that a backward pass went through."""
        return {call for each in self.watch.saved if each.used_at >= 0 for call in self._around(each)}

    @cached_property
    def trained_calls(self) -> set[int]:
        """Those of `used_calls` of which a pass made more than the gradients of inputs, as an attack does."""
        return {call for each in self.watch.saved if each.trains for call in self._around(each)}

    @cached_property
    def retained(self) -> dict[Site, list[int]]:
        """The allocations at the peak that a pass with `retain_graph=True` used last, by the line of that pass."""
        unread, found = set(self.views.unread), defaultdict[Site, list[int]](list)
        for each in self.watch.saved:
            for kept in self.watch.retained if each.handle in unread else ():
                if kept.begun <= each.used_at < kept.ended and each.handle not in found[kept.site]:
                    found[kept.site].append(each.handle)
        return {site: handles for site, handles in found.items() if handles}

    def ended_by(self, site: Site, kept: Iterable[int]) -> dict[int, int]:
        """Returns the allocations that passes at a line would have released without `retain_graph=True`, and when.

        A pass with `create_graph=True` retains its graph too.

        That is a number of the recorder's events: autograd releases what a node has saved when the next one begins.
        Those that variables keep stay: they are like the ones of `kept` that do.
        """
        stay = set(self.alike([each for each in kept if self.in_variable(each)]))
        found = dict[int, int]()
        for one in (each for each in (*self.watch.retained, *self.watch.created) if each.site == site):
            used = [each for each in self.watch.saved if one.begun <= each.used_at < one.ended]
            begins = sorted({each.event for each in used})
            for each in used:
                following = bisect_right(begins, each.event)
                end = begins[following] if following < len(begins) else self.watch.reads[each.handle]
                found[each.handle] = max(found.get(each.handle, 0), end, self.watch.reads[each.handle])
        stay |= self.watch.outside | {each for each in found if self.watch.kinds[each] not in PASSING}
        stay -= set(self.alike(self.kept_batches))
        return {each: end for each, end in found.items() if each not in stay}

    @property
    def kept_batches(self) -> list[int]:
        """The allocations of former batches that only a graph keeps at the peak."""
        return [each for each in self.views.batches if (holder := self.held.get(each)) is not None and holder.graph]

    @cached_property
    def used_again(self) -> dict[Site, set[bool]]:
        """The lines of passes with `retain_graph=True` whose graph later passes have used in part.

        With each, whether such passes were in the same step.
        """
        born, kinds, found = self.watch.born, self.watch.kinds, defaultdict[Site, set[bool]](set)
        made = [each for each in self.watch.saved if kinds[each.handle] in PASSING]
        for kept in self.watch.retained:
            end = (*self.watch.ends, math.inf)[kept.step - 1]
            for each in made:
                if each.step <= kept.step and born[each.handle] < kept.begun and each.used_at >= kept.ended:
                    found[kept.site].add(each.used_at <= end)
        return dict(found)

    @cached_property
    def cut_off(self) -> dict[int, Site]:
        """The parameters of optimizers, by id, that checkpointing keeps from any gradient, with its line.

        Reentrant checkpointing makes no graph if none of its inputs needs a gradient.
        """
        return {
            id(parameter): site
            for site, modules in self.watch.cut_off.items()
            for index in modules & self.modules.keys()
            for parameter in self.modules[index].parameters()
            if parameter.requires_grad and id(parameter) in self.optimized - self.watch.with_gradient
        }

    def unused_calls(self, handles: Iterable[int]) -> list[tuple[torch.nn.Module, int]]:
        """Returns the outermost calls of modules that saved some allocations and nothing that was used.

        Each is the module, and how often it was called before in the same step.
        """
        wanted, used = set(handles), self.used_calls
        saved = [each for each in self.watch.saved if each.step == self.step and each.handle in wanted]
        outermost = {next((call for call in self._around(each) if call not in used), -1) for each in saved}
        calls = [self.watch.calls[call] for call in sorted(outermost) if call >= 0]
        return [(self.modules[call.module], call.number) for call in calls if call.module in self.modules]

    def name_of(self, module: torch.nn.Module) -> str:
        """Returns the qualified name of a module, or its class if it is a whole model."""
        index = self.watch.modules.index_of(module)
        return (self.watch.modules.names[index] if index is not None else "") or type(module).__name__

    @property
    def retained_handles(self) -> frozenset[int]:
        """The allocations of `retained`."""
        return frozenset(handle for handles in self.retained.values() for handle in handles)

    @property
    def zero_gaps(self) -> list[tuple[int, int, int]]:
        """The gradients that were zeroed and summed into in the judged step: handle, and numbers of events."""
        first, last = self.views.events
        zeroed = [each for each in self.watch.zeroed if first <= each.last < last]
        return [(each.handle, each.first, each.last) for each in zeroed]

    @property
    def zeroing_places(self) -> tuple[Place, ...]:
        """Where gradients were set to zero in the judged step."""
        return tuple(dict.fromkeys(self.place_at(each.site) for each in self.watch.zeroed if each.step == self.step))

    @property
    def graph_rises(self) -> bool:
        """Whether there were more nodes of earlier steps after each of the last steps."""
        rises = [later > earlier for earlier, later in pairwise(self.watch.nodes[1:])]
        return len(rises) >= GROWING - 1 and all(rises[1 - GROWING :])

    @staticmethod
    def place_at(site: Site, module: str = "", holder: str = "") -> Place:
        """Returns a line as a place."""
        return Place(line=site.user, library=site.library, module=module, holder=holder)

    @property
    def of_step(self) -> Iterator[int]:
        """The allocations that the judged step made for its own use."""
        watch = self.watch
        for handle, step in enumerate(watch.steps):
            if step == self.step and watch.kinds[handle] in PASSING and handle not in watch.outside:
                yield handle

    @cached_property
    def modules(self) -> dict[int, torch.nn.Module]:
        """The modules of all models by their index in the record."""
        parts = (part for model in self.watch.models.values() for part in model.modules())
        return {index: part for part in parts if (index := self.watch.modules.index_of(part)) is not None}

    @cached_property
    def names(self) -> dict[int, tuple[str, torch.Tensor]]:
        """The parameters of all models with their names, by id."""
        return {id(parameter): (name, parameter) for name, parameter in self.watch.parameters()}

    @cached_property
    def optimized(self) -> set[int]:
        """The ids of the parameters in the optimizers that stepped."""
        groups = [group for optimizer in self.watch.optimizers.values() for group in optimizer.param_groups]
        return {id(parameter) for group in groups for parameter in group["params"]}


class _Views:
    """One step of a watch as a trace, and its peak."""

    def __init__(self, watch: Watch, account: Account, step: int) -> None:
        self.watch, self.step = watch, step
        self.assembly: Assembly = assembled(watch)
        marks = tuple(mark.model_copy(update={"event": self.assembly.place(mark.event)}) for mark in watch.marks)
        whole = Trace(
            micro_batch_size=1,
            tensors=self.assembly.tensors,
            events=self.assembly.events,
            marks=marks,
            modules=tuple(watch.modules.names),
        )
        self.whole, self.trace = whole, step_of(whole, step)
        first = next(mark.event for mark in marks if mark.name.startswith(f"step {step} "))
        self.initial = len(whole.alive(first))
        phases = [mark.event for mark in watch.marks if mark.name.startswith(f"step {step} ")]
        later = [mark.event for mark in watch.marks if mark.name.startswith(f"step {step + 1} ")]
        self.events = phases[0], later[0] if later else len(watch.events)
        self._shift = self.initial - first
        self.use = memory_use(self.trace, account)
        self.peak_bytes = self.use.allocated_bytes
        self.alive = self.trace.alive(self.use.peak.peak_event)

    def place(self, event: int) -> int:
        """Returns the number of events in the step's trace before one of the recorder's events."""
        return max(self.assembly.place(event) + self._shift, self.initial)

    @cached_property
    def peak_operator(self) -> int:
        """Number of the operator that makes the allocation of the peak."""
        number = self.trace.events[self.use.peak.peak_event - 1]
        number = number if number >= 0 else ~number
        return max(self.watch.born[handle] for handle, known in self.assembly.numbers.items() if known == number)

    def unread_bytes(self) -> tuple[int, ...]:
        """Returns, for each point of the step's profile, the bytes that are alive and never read again."""
        last = dict[int, int]()
        for handle, number in self.assembly.numbers.items():
            if self.watch.kinds[handle] in PASSING and handle not in self.watch.outside:
                last[number] = max(last.get(number, 0), self.place(self.watch.reads[handle]))
        ends = defaultdict[int, list[int]](list)
        for number, place in last.items():
            ends[place].append(number)
        sizes, alive, dead, total, found = self.trace.tensors.sizes, set[int](), set[int](), 0, list[int]()
        for place, event in enumerate(self.trace.events):
            if event >= 0:
                alive.add(event)
            else:
                alive.discard(~event)
                total -= sizes[~event] if ~event in dead else 0
            for number in ends[place + 1]:
                if number in alive:
                    dead.add(number)
                    total += sizes[number]
            found.append(total)
        return tuple(found[event] for event in points_of(self.trace)[0])

    @property
    def unread(self) -> list[int]:
        """The allocations of the user's step that are alive at the peak and have not been read since, by size."""
        watch = self.watch
        found = [each for each in self._idle if watch.kinds[each] in PASSING and each not in watch.outside]
        return sorted(found, key=lambda handle: -watch.sizes[handle])

    @property
    def batches(self) -> list[int]:
        """The allocations of batches that are alive at the peak and have not been read since."""
        return [each for each in self._idle if self.watch.kinds[each] is Kind.BATCH and each not in self.watch.ready]

    @property
    def _idle(self) -> Iterator[int]:
        for handle, number in self.assembly.numbers.items():
            if number in self.alive and self.watch.read_by[handle] < self.peak_operator:
                yield handle


def places(watch: Watch, step: int) -> dict[tuple[Likeness, int], int]:
    """Returns the allocations of a step and of those before it, by what they have in common with another step's."""
    counts, found = Counter[Likeness](), dict[tuple[Likeness, int], int]()
    for handle, born in enumerate(watch.steps):
        if born > step:
            break
        place = (step - born, watch.operators[handle], watch.sites[handle], watch.origins[handle], watch.sizes[handle])
        found[place, counts[place]] = handle
        counts[place] += 1
    return found
