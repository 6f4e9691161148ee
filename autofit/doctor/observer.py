"""Observer: runs the watch over the steps of a training, and asks who holds what."""

import gc
import math
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from weakref import WeakValueDictionary

import torch

from autofit.core.account import Account
from autofit.doctor.graphs import DatedGraphs, nodes_of
from autofit.doctor.holders import Holder, find_holders, held, paths_to
from autofit.doctor.observation import GROWING, PASSING, STEPS, Carried, Observation, View, places
from autofit.doctor.sites import Site
from autofit.doctor.watch import Watch
from autofit.memory.trace import Kind
from autofit.torch_internals import base_of, sequence_number
from autofit.workloads.tree import live_tensors


class Observer:
    """Runs the watch over the steps of a training and asks, at the peak of the last one, who holds what.

    Call `boundary` after each step until it returns the observation. With fewer than `STEPS`, of which there are at
    least 3, no growth is found.
    """

    def __init__(
        self,
        watch: Watch,
        account: Account,
        budget_bytes: int,
        roots: Callable[[], Mapping[str, object]],
        steps: int = STEPS,
    ) -> None:
        self._watch, self._roots = watch, roots
        self._found = Observation(watch, account, budget_bytes, steps)

    def boundary(self) -> Observation | None:
        """Ends a step. Returns the observation after the last one."""
        watch = self._watch
        watch.boundary()
        if watch.step == self._found.steps:
            self._name_models()
            self._set_trap()
        if watch.step <= self._found.steps:
            return None
        watch.on_operator = None
        return self.result()

    def result(self) -> Observation:
        """Returns what was seen so far; nothing is observed any more."""
        with self._watch.aside():
            if self._watch.step < self._found.steps:
                self._name_models()
            self._find_growth()
            self._find_constants()
            if not self._found.asked:
                self._find_views(self._watch.step - 1)  # local variables of a function may still have the last step's
            self._found.frozen_states = _frozen_states(self._watch)
        return self._found

    def _name_models(self) -> None:
        """Names several models as the user's code does, before their names get into a trace."""
        models, unlisted = self._watch.models, self._watch.unlisted
        if sum(unlisted.isdisjoint(map(id, each.parameters())) for each in models.values()) > 1:
            roots = {name: value for name, value in self._roots().items() if name not in models}
            rename(self._watch, paths_to(models.values(), roots))

    def _find_constants(self) -> None:
        """Finds the float64 tensors from outside the steps that bring float64 in, and who holds them."""
        watch, wanted = self._watch, set[int]().union(*self._watch.widened.values())
        self._found.sources = find_holders(watch.handle_of, wanted, self._roots())
        wide = [each for each in watch.alive() if each.dtype is torch.float64 and watch.handle_of(each) in wanted]
        if all(watch.widened.values()) and {watch.handle_of(each) for each in wide} == wanted:
            self._found.constants = wide

    def _set_trap(self) -> None:
        """Has the holders asked in the next step, before the operator that makes the peak."""
        views = self._found.views
        if not views.unread:
            self._found.asked = True  # there is nothing to ask
            return
        watch, peak = self._watch, views.peak_operator
        first = next(handle for handle, step in enumerate(watch.steps) if step == views.step)
        made = [handle for handle in range(first, len(watch.born)) if watch.born[handle] == peak]
        if not made:
            return
        what = (watch.operators[made[0]], watch.sites[made[0]])
        count = len(
            {
                watch.born[handle]
                for handle in range(first, made[0])
                if (watch.operators[handle], watch.sites[handle]) == what and watch.steps[handle] == views.step
            }
        )
        watch.on_operator = partial(self._at_operator, what, count, len(watch.sizes))

    def _at_operator(self, what: tuple[str, Site], count: int, first: int, watch: Watch, func: Any) -> None:
        if self._found.asked or (func.name(), watch.site) != what:
            return
        before = {
            watch.born[handle]
            for handle in range(first, len(watch.sizes))
            if (watch.operators[handle], watch.sites[handle]) == what
        }
        if len(before) < count:
            return
        self._found.asked = True
        with watch.aside():
            self._found.held = self._holders_at_peak()
            self._find_views(watch.step)

    def _find_views(self, step: int) -> None:
        """Finds the views that have outlived a step before this one, and keep more than they use."""
        watch, roots = self._watch, self._roots()
        used = {handle: size for handle, size in used_bytes(watch, roots).items() if watch.steps[handle] < step}
        holders = find_holders(watch.handle_of, used, roots)
        self._found.hidden = {handle: View(size, holders.get(handle)) for handle, size in used.items()}

    def _holders_at_peak(self) -> dict[int, Holder]:
        """Returns the holders of what is dead at the peak, and of former batches, which the step has made again."""
        watch, views = self._watch, self._found.views
        then = {handle: place for place, handle in places(watch, views.step).items()}
        now, live = places(watch, watch.step), set(watch.live())
        again = {now.get(then[handle]): handle for handle in (*views.unread, *views.batches)}
        wanted = [each for each in again if each is not None and each in live]
        found = find_holders(watch.handle_of, wanted, self._roots())
        return {again[handle]: holder for handle, holder in found.items()}

    def _find_growth(self) -> None:
        watch, last = self._watch, self._watch.step - 1
        steps = defaultdict[tuple[str, Site], dict[int, list[int]]](lambda: defaultdict(list))
        for handle in watch.live():
            if watch.kinds[handle] in (*PASSING, Kind.BATCH) and handle not in watch.ready:
                made = (watch.operators[handle], watch.sites[handle])
                steps[made][watch.steps[handle]].append(handle)
        wanted = range(1, last + 1)
        # The last step may keep its own results until the next one: what the step before it left is certain.
        grown = {made: by for made, by in steps.items() if all(step in by for step in wanted) and last >= GROWING}
        one_step = {made: tuple(by[last - 1]) for made, by in grown.items()}
        every = [handle for handles in one_step.values() for handle in handles]
        lines = watch.last_lines()
        self._found.kept_at = {each: lines[each] for each in every if each in lines}
        self._found.carried = _carried(watch, self._roots()) if self._found.graph_rises else ()
        longer = _lengthened(watch) if last >= GROWING else {}
        holders = find_holders(watch.handle_of, [*every, *longer], self._roots())
        self._found.lengthened = {each: (holders[each], size) for each, size in longer.items() if each in holders}
        self._found.grown = one_step
        self._found.growers = {handle: holders[handle] for handle in every if handle in holders}
        first = {max(handles, key=watch.sizes.__getitem__): made for made, handles in one_step.items()}
        unheld = {handle: made for handle, made in first.items() if handle not in holders}
        if unheld:
            gc.collect()
            left = set(watch.live())
            self._found.cycles = frozenset(made for handle, made in unheld.items() if handle not in left)


def rename(watch: Watch, names: Mapping[int, str]) -> None:
    """Gives the models of a watch the names that the user's code has for them, by id."""
    before, watch.models = watch.models, WeakValueDictionary()
    for old, model in before.items():
        name = names.get(id(model), old)
        while name in watch.models:
            name += "'"
        watch.models[name] = model
        watch.modules.rename(model, name)


def _carried(watch: Watch, roots: Mapping[str, object]) -> list[Carried]:
    """Returns the graphs that have nodes of each step but the last, by the variable that holds them.

    What was made first goes first, such as a state before the loss that is made of it.
    """
    dated, last, seen = DatedGraphs(watch.begins), watch.step - 1, set[Any]()
    wanted = sum(1 << step for step in range(1, last))
    named = [*held(roots), *((None, tensor) for tensor in watch.alive())]
    rooted = [(holder, tensor.grad_fn) for holder, tensor in named if tensor.grad_fn is not None]
    whole = [(holder, root) for holder, root in rooted if dated.steps(root) & wanted == wanted]
    found = dict[str, Carried]()
    for holder, root in sorted(whole, key=lambda each: (each[0] is None, sequence_number(each[1]))):
        nodes = sum(1 for node in nodes_of([root], seen) if dated.step_of(node) == last - 1)
        if nodes:
            carried = found.setdefault("" if holder is None else holder.variable, Carried(holder))
            carried.tensors, carried.nodes = carried.tensors + 1, carried.nodes + nodes
    return list(found.values())


def _lengthened(watch: Watch) -> dict[int, int]:
    """Returns the live allocations that each step has made from the one before, and the bytes that a step adds.

    The operator that makes one is the last that reads the one before, as `kept = torch.cat([kept, new])` does.
    """
    readers, last, found = defaultdict[int, list[int]](list), watch.step - 1, dict[int, int]()
    for handle, number in enumerate(watch.read_by):
        readers[number].append(handle)
    for handle in watch.live():
        sizes, present = dict[int, int](), [handle]
        while present and watch.kinds[handle] in PASSING:
            now = present[0]
            sizes.setdefault(watch.steps[now], watch.sizes[now])
            way, size = (watch.operators[now], watch.sites[now]), watch.sizes[now]
            before = (each for each in readers[watch.born[now]] if each < now and watch.sizes[each] < size)
            present = [each for each in before if (watch.operators[each], watch.sites[each]) == way]
        if all(step in sizes for step in range(1, last + 1)):
            found[handle] = (sizes[last] - sizes[1]) // (last - 1)
    return found


def used_bytes(watch: Watch, roots: Mapping[str, object]) -> dict[int, int]:
    """Returns the bytes that views reach of live allocations of the steps, if these are not all of them.

    A tensor that only its views keep, as their `_base`, does not count as one of them.
    """
    parts = defaultdict[int, dict[object, int]](dict)
    tensors = live_tensors()
    bases = {id(base) for each in tensors if (base := base_of(each)) is not None}
    kept = {id(each) for _, each in held(roots)} if bases else set()
    for tensor in (each for each in tensors if id(each) in kept or id(each) not in bases):
        handle = watch.handle_of(tensor)
        if handle is None or watch.kinds[handle] not in PASSING or handle in watch.outside:
            continue
        count = math.prod(size for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride)
        form = (tensor.storage_offset(), tuple(tensor.shape), tensor.stride())
        parts[handle][form] = count * tensor.element_size()
    used = {handle: sum(forms.values()) for handle, forms in parts.items()}
    return {handle: size for handle, size in used.items() if size < watch.sizes[handle]}


def _frozen_states(watch: Watch) -> dict[int, list[int]]:
    """Returns the optimizer states of parameters that are not trained any more."""
    found = dict[int, list[int]]()
    for parameter, state in ((p, s) for each in watch.optimizers.values() for p, s in each.state.items()):
        # In each step, a GAN freezes one of its models for a while.
        lately = watch.last_gradient.get(id(parameter), 0) >= watch.step - 2
        if isinstance(parameter, torch.Tensor) and not parameter.requires_grad and not lately:
            known = (watch.handle_of(each) for each in state.values() if isinstance(each, torch.Tensor))
            found[id(parameter)] = [handle for handle in known if handle is not None]
    return {parameter: handles for parameter, handles in found.items() if handles}
