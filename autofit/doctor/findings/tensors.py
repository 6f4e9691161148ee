"""Tensors that are larger than what is used of them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Set
from functools import partial
from itertools import islice
from typing import Any

import torch

from autofit.core.units import format_bytes
from autofit.doctor.diagnosis import LEAST_BYTES, LEAST_RATIO, Finding, Place, Size
from autofit.doctor.findings.base import PART, WHOLE, Detector, is_nothing, largest_of, made, place_of, places_of
from autofit.doctor.observation import Observation
from autofit.doctor.waits import CAST
from autofit.doctor.what_if import Change, narrowed
from autofit.reports.sentences import counted
from autofit.tracing.host_temporaries import MIXED
from autofit.workloads.batch_algebra import leaves

CASTING = {CAST.name()}  # type: ignore[no-untyped-call]  # torch has no types here
"""Name of the operator of casts."""
CONVERTING = {each.name() for each in MIXED}  # type: ignore[no-untyped-call]  # nor here
"""Names of the operators that copy operands of another type than their result's while they run on a host."""
LEAST_BUFFER_BYTES = 1024
"""Smallest buffer that is compared with others."""


class Float64(Detector):
    """Tensors in float64 in a step of a model that has no parameter in it."""

    id = "float64"
    about = "float64 tensors in a model that does not compute in float64"

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding, with the operators that brought float64 in."""
        watch = observation.watch
        if any(parameter.dtype is torch.float64 for _, parameter in watch.parameters()):
            return
        handles = [handle for handle in observation.of_step if _is_wide(observation, handle)]
        if not handles:
            return
        wide = set(handles).union(*watch.widened.values())
        saved_bytes = observation.saved_bytes(**_as_float32(observation, wide))
        total_bytes = observation.size_of(handles)
        if is_nothing(observation, total_bytes):
            return
        sources = [f"{_brought(observation, each)}{name} at {site}" for (name, site), each in watch.widened.items()]
        yield Finding(
            id=self.id,
            what=(
                f"a step has {counted(len(handles), 'tensor')} of float64 ({format_bytes(total_bytes)}), such as "
                f"{made(observation, largest_of(observation, handles))}, because of "
                f"{' and '.join(sources[:3]) or 'a tensor that was made outside the step'}"
            ),
            remedy=(
                "make the constant, buffer or array float32, as with .float() or dtype=torch.float32, or leave out the "
                "cast, unless the precision is needed"
            ),
            places=(*islice(_places(observation), 3), *places_of(observation, handles)),
            size=None if is_nothing(observation, saved_bytes) else Size(peak_bytes=saved_bytes, bound="at least"),
            minor=total_bytes < LEAST_RATIO * observation.peak_bytes,
        )

    def change(self, observation: Observation, finding: Finding) -> Change | None:
        """Returns the constants that bring float64 in as float32. On a device, the float64 ones stay in memory too."""
        if not observation.constants:
            return None
        opened = partial(narrowed, observation.constants, observation.further.run)
        return Change("these constants as float32", opened=opened, bound="at least")


def _as_float32(observation: Observation, wide: Set[int]) -> dict[str, Any]:
    """Returns what is other if some float64 allocations are float32, as arguments of `Observation.saved_bytes`.

    They have half their size, operands are not converted to them, and a cast between them and float32 returns its
    operand, which then lives as long as either, unless something changes one of the two in place.
    """
    watch, without, ends_at = observation.watch, set[int](), dict[int, int]()
    sizes = {each: watch.sizes[each] // 2 for each in wide}
    begins = {event: place for place, event in enumerate(watch.events) if event >= 0}
    ends = {~event: place for place, event in enumerate(watch.events) if event < 0}
    written = {each for ran in watch.ran for each in ran.results if each not in ran.made}
    written.update(watch.added.values(), watch.replaced.values())
    first, last = dict[int, int](), dict[int, int]()  # of what becomes one tensor, by one of them and by the first
    for ran in (each for each in watch.ran if not wide.isdisjoint((*each.reads, *each.results))):
        names = set(watch.operators[ran.made.start : ran.made.stop])
        if names & CONVERTING:
            without.update(each for each in ran.made if each not in ran.results)
        pair = {*ran.reads, *ran.results}
        others = {None if (form := watch.forms[each]) is None else form[0] for each in pair - wide}
        if names != CASTING or len(pair) != 2 or others != {torch.float32} or pair & written:
            continue
        operand, result = sorted(pair)
        root = first[result] = first.get(operand, operand)
        present = last.get(root, root)
        if ends.get(result, len(watch.events)) <= ends.get(present, len(watch.events)):
            without.add(result)
        else:
            ends_at[present], last[root] = begins[result], result
            sizes[result] = sizes.get(root, watch.sizes[root])
    return {"sizes": sizes, "without": without, "ends_at": ends_at}


class WideMask(Detector):
    """Masks of 0 and 1 in a batch, in a type of more than one byte."""

    id = "wide-mask"
    about = "masks that a batch holds as numbers of several bytes"
    runs = True

    def unchecked(self, observation: Observation) -> str:
        """Returns why not, if the batches are not known."""
        return "batches are read from the loader of a workload only" if observation.further.batch() is None else ""

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding for all masks, which are recognised by their names and values."""
        named = ((path.removeprefix("."), leaf) for path, leaf, _ in leaves(observation.further.batch(), -1))
        masks = [(name, leaf) for name, leaf in named if "mask" in name.lower() and _is_wide_mask(leaf)]
        saved_bytes = sum(mask.numel() * (mask.element_size() - 1) for _, mask in masks)
        if not masks or is_nothing(observation, saved_bytes):
            return
        name, mask = max(masks, key=lambda each: each[1].numel() * each[1].element_size())
        kind = str(mask.dtype).removeprefix("torch.")
        yield Finding(
            id=self.id,
            what=f"{name} of the batch is {kind} {list(mask.shape)}, and has no other values than 0 and 1",
            remedy="make it torch.bool in the data set or the collate_fn",
            size=Size(peak_bytes=saved_bytes, basis="counted", bound="at most"),
            minor=saved_bytes < max(LEAST_RATIO * observation.peak_bytes, LEAST_BYTES),
        )


class ViewHolds(Detector):
    """Views that outlive a step and keep a larger tensor alive, such as one position of all hidden states."""

    id = "view-holds"
    about = "a view that keeps a larger tensor alive from step to step"

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields a finding for each variable."""
        variables = defaultdict[str, list[int]](list)
        for handle, view in observation.hidden.items():
            if view.holder is None or view.holder.graph or (observation.grows(handle) and not view.holder.bounded):
                continue  # what grows without a limit is found by `Grows`
            variables[view.holder.variable].append(handle)
        for handles in variables.values():
            hidden_bytes = sum(observation.watch.sizes[each] - observation.hidden[each].used_bytes for each in handles)
            largest = largest_of(observation, handles)
            view = observation.hidden[largest]
            yield Finding(
                id=self.id,
                what=(
                    f"{view.holder} uses {format_bytes(view.used_bytes)}, "
                    f"but keeps all of {made(observation, largest)}, from step to step"
                ),
                remedy=WHOLE if observation.is_spacious(largest) else PART,
                places=(place_of(observation, largest, view.holder),),
                size=Size(peak_bytes=hidden_bytes, basis="counted"),
                minor=hidden_bytes < max(LEAST_RATIO * observation.peak_bytes, LEAST_BYTES),
            )


class Duplicates(Detector):
    """Buffers with equal contents, such as a mask or a table in each layer."""

    id = "duplicates"
    about = "buffers with equal contents in several modules"

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields a finding for each group of equal buffers."""
        for group in _equal_buffers(observation):
            name, buffer = group[0]
            size_bytes = (len(group) - 1) * buffer.numel() * buffer.element_size()
            yield Finding(
                id=self.id,
                what=f"{len(group)} buffers have equal contents, such as {name} and {group[1][0]}",
                remedy="make the buffer once and share it between the modules, or compute it where it is needed",
                places=tuple(Place(module=each) for each, _ in group[:8]),
                size=Size(peak_bytes=size_bytes, basis="counted"),
                minor=size_bytes < max(LEAST_RATIO * observation.peak_bytes, LEAST_BYTES),
            )


def _brought(observation: Observation, handles: Iterable[int]) -> str:
    """Returns the float64 operands with which an operator brings float64 in, in words."""
    names = dict.fromkeys(_name_of(observation, each) for each in sorted(handles))
    return f"{' and '.join(list(names)[:3])} in " if names else ""


def _name_of(observation: Observation, handle: int) -> str:
    if (buffer := observation.watch.buffers.get(handle)) is not None:
        return f"the buffer {buffer}"
    holder, form = observation.sources.get(handle), observation.form_of(handle)
    return f"a batch or an array, {form}," if holder is None else f"{holder}, {form},"


def _places(observation: Observation) -> Iterator[Place]:
    """Yields the lines of the operators that brought float64 in, each with a variable that holds such an operand."""
    for (_, site), handles in observation.watch.widened.items():
        held = [str(holder) for each in sorted(handles) if (holder := observation.sources.get(each)) is not None]
        yield observation.place_at(site, holder=held[0] if held else "")


def _is_wide(observation: Observation, handle: int) -> bool:
    form = observation.watch.forms[handle]
    return form is not None and form[0] is torch.float64 and bool(form[1])


def _is_wide_mask(leaf: object) -> bool:
    if not isinstance(leaf, torch.Tensor) or leaf.element_size() == 1:
        return False
    return bool(((leaf == 0) | (leaf == 1)).all())


def _equal_buffers(observation: Observation) -> Iterator[list[tuple[str, torch.Tensor]]]:
    """Yields groups of buffers with equal contents in different storages. Constants are initial values and left out."""
    alike = defaultdict[object, list[tuple[str, torch.Tensor]]](list)
    for prefix, model in observation.watch.models.items():
        for name, buffer in model.named_buffers():
            if buffer.layout is torch.strided and buffer.numel() * buffer.element_size() >= LEAST_BUFFER_BYTES:
                full = ".".join(part for part in (prefix, name) if part)
                alike[tuple(buffer.shape), buffer.dtype, buffer.device].append((full, buffer))
    for candidates in alike.values():
        for group in _groups(candidates):
            storages = {each.untyped_storage().data_ptr() for _, each in group}
            first = group[0][1]
            if len(storages) > 1 and not bool((first == first.flatten()[0]).all()):
                yield group


def _groups(candidates: Iterable[tuple[str, torch.Tensor]]) -> list[list[tuple[str, torch.Tensor]]]:
    found = list[list[tuple[str, torch.Tensor]]]()
    for name, tensor in candidates:
        group = next((each for each in found if torch.equal(each[0][1], tensor)), None)
        if group is None:
            found.append([(name, tensor)])
        else:
            group.append((name, tensor))
    return found
