"""Tensors that are larger than what is used of them."""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import torch

from autofit.core.units import format_bytes
from autofit.doctor.diagnosis import LEAST_BYTES, LEAST_RATIO, Finding, Place, Size
from autofit.doctor.findings.base import Detector, is_nothing, largest_of, made, place_of, places_of
from autofit.doctor.observation import Observation
from autofit.reports.sentences import counted
from autofit.workloads.batch_algebra import leaves

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
        saved_bytes = observation.saved_bytes(sizes={handle: watch.sizes[handle] // 2 for handle in handles})
        total_bytes = observation.size_of(handles)
        if is_nothing(observation, total_bytes):
            return
        sources = [f"{name} at {site}" for name, site in watch.widened]
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
            places=(*(observation.place_at(site) for _, site in watch.widened[:3]), *places_of(observation, handles)),
            size=Size(peak_bytes=max(saved_bytes, 0), bound="at least"),  # casts to and from float64 go as well
            minor=total_bytes < LEAST_RATIO * observation.peak_bytes,
        )


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
                remedy=(
                    "delete it after the step, or keep a number (loss.item()): its operator returns a part of a larger "
                    "memory"
                    if observation.is_spacious(largest)
                    else "keep a copy of the part: tensor.clone() instead of the view"
                ),
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
