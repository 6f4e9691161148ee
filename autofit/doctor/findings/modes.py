"""Switches of modules that are not as a training needs them."""

from collections.abc import Iterator

import torch
from torch import nn

from autofit.core.units import format_bytes, format_names
from autofit.doctor.diagnosis import Finding, Place
from autofit.doctor.findings.base import Detector
from autofit.doctor.observation import Observation
from autofit.doctor.seen import Switched
from autofit.doctor.sites import Site
from autofit.reports.sentences import counted
from autofit.torch_internals import BatchNorm, DropoutNd

NAMED = 3
"""Maximum number of modules in a sentence."""


class Modes(Detector):
    """Dropout or batch normalisation in evaluation mode in a pass that trains, or statistics updated in vain."""

    id = "modes"
    about = "dropout or batch normalisation in the wrong mode"

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields a finding for modules in evaluation mode, and one for statistics that an evaluation updates."""
        resting, updated, lines = list[str](), list[str](), list[Site]()
        alive = observation.modules
        fed = _feeding(observation)
        for call in (each for each in sorted(observation.watch.switches) if each.module in alive):
            module = alive[call.module]
            if not call.training and _trains(observation, call):
                resting.append(f"{observation.name_of(module)} ({type(module).__name__})")
                lines += [each for each in [observation.watch.resting.get(module)] if each is not None]
            if call.training and not call.gradients and call.module not in fed and _has_statistics(module):
                updated.append(f"{observation.name_of(module)} ({type(module).__name__})")
        if resting := list(dict.fromkeys(resting)):
            yield Finding(
                id=self.id,
                what=f"the step trains {format_names(resting, NAMED)} in evaluation mode"
                + (f", into which {lines[0]} has put them" if lines else ""),
                remedy=(
                    "call model.train() after that line and before the next step"
                    if lines
                    else "call model.train() before the loop; from_pretrained returns a model in evaluation mode"
                ),
                places=(*map(observation.place_at, lines[:1]), *(Place(module=name) for name in resting[:8])),
            )
        if updated := list(dict.fromkeys(updated)):
            yield Finding(
                id=self.id,
                what=f"a pass without gradients updates the statistics of {format_names(updated, NAMED)}",
                remedy="call eval() on the model that is only evaluated",
                places=tuple(Place(module=name) for name in updated[:8]),
            )
        yield from self._given(observation)

    def _given(self, observation: Observation) -> Iterator[Finding]:
        """Yields a finding for a model that its maker gave in evaluation mode, in which its own loop may train it.

        It is minor if a library did that, as `from_pretrained` does, whose trainer undoes it.
        """
        lines = {
            f"{observation.name_of(module)} ({type(module).__name__})": observation.rested[module]
            for call in sorted(observation.watch.switches)
            if call.training and _trains(observation, call)
            for module in [observation.modules[call.module]]
            if module in observation.rested
        }
        if lines:
            names, line = list(lines), next(iter(lines.values()))
            yield Finding(
                id=self.id,
                what=(
                    f"the model was given in evaluation mode, into which {line} has put it: autofit trains "
                    f"{format_names(names, NAMED)} in training mode, but a loop that does not call model.train() "
                    "leaves them in evaluation mode"
                ),
                remedy="call model.train() after that line, or before the loop; the Trainer of transformers calls it",
                places=(observation.place_at(line), *(Place(module=name) for name in names[:8])),
                minor=bool(line.library),
            )


class CheckpointNoEffect(Detector):
    """Activation checkpointing that is switched on, while no module runs again in the backward pass."""

    id = "checkpoint-no-effect"
    about = "activation checkpointing that recomputes nothing"

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding for parameters that are cut off by it, or else for all modules that have it on."""
        switched = [
            (name or type(model).__name__, model, part)
            for name, model in observation.watch.models.items()
            for part in model.modules()
            if getattr(part, "gradient_checkpointing", False) is True
        ]
        if observation.cut_off:
            yield self._cut_off(observation)
        elif switched and not observation.watch.recomputed and observation.watch.with_gradient:
            name, model, part = switched[0]
            trained = any(
                id(each) in observation.watch.with_gradient for *_, one in switched for each in one.parameters()
            )
            why, remedy = _cause(model, part, trained=trained)
            yield Finding(
                id=self.id,
                what=(
                    f"gradient checkpointing is on in {counted(len(switched), 'module')} of {name}, but the backward "
                    f"pass runs no module again: {why}"
                ),
                remedy=remedy,
                places=(Place(module=name),),
            )

    def _cut_off(self, observation: Observation) -> Finding:
        """Returns the finding that checkpointing keeps parameters from any gradient."""
        found = [observation.names[each] for each in observation.cut_off if each in observation.names]
        size_bytes = sum(each.nbytes for _, each in found)
        lines = list(dict.fromkeys(observation.cut_off.values()))
        return Finding(
            id=self.id,
            what=(
                f"reentrant checkpointing at {lines[0]} gets no input that needs a gradient, so that the backward pass "
                f"does not reach what it runs: {counted(len(found), 'parameter')} ({format_bytes(size_bytes)}), such "
                f"as {found[0][0]}, are not trained"
            ),
            remedy=(
                "pass use_reentrant=False to checkpoint, in transformers gradient_checkpointing_kwargs="
                '{"use_reentrant": False}, or make the input require a gradient, in transformers '
                "model.enable_input_require_grads()"
            ),
            places=(*map(observation.place_at, lines), *(Place(module=name) for name, _ in found[:8])),
        )


def _cause(model: nn.Module, part: nn.Module, *, trained: bool) -> tuple[str, str]:
    """Returns why a module that has checkpointing on does not run again, and what to do."""
    if not part.training:
        return "it is in evaluation mode, in which transformers does not checkpoint", "call model.train()"
    if not trained:
        return (
            "no parameter of these modules gets a gradient",
            "switch checkpointing off, which has nothing to save there, or unfreeze what is to be trained",
        )
    if any(getattr(getattr(each, "config", None), "use_cache", False) is True for each in model.modules()):
        return "use_cache=True of its config may keep it from that", "set model.config.use_cache = False"
    return "their forward pass does not use it", "call torch.utils.checkpoint.checkpoint there, or use another block"


def _feeding(observation: Observation) -> set[int]:
    """Returns the modules that run with and without gradients in each step, as the generator of a GAN does.

    An evaluation of the model that is trained comes in some steps only. A teacher that follows its student counts too.
    """
    switches = [each for each in observation.watch.switches if each.training]
    trained, steps = {each.module for each in switches if each.gradients}, len(observation.watch.levels)
    bare = {each: {one.step for one in switches if one.module == each and not one.gradients} for each in trained}
    scales = observation.watch.scales.items()
    following = {index for index, scale in scales if index not in trained and _follows(observation, index, scale)}
    return following | {each for each, found in bare.items() if len(found) >= steps}


def _follows(observation: Observation, index: int, before: torch.Tensor) -> bool:
    """Returns whether a module that is not trained changes in the steps, as a teacher that follows its student."""
    now = getattr(observation.modules.get(index), "weight", None)
    return isinstance(now, torch.Tensor) and not torch.equal(now.detach(), before)


def _trains(observation: Observation, call: Switched) -> bool:
    """Returns whether a backward pass went through the call of a module that is not at rest by intent."""
    module, trained = observation.modules.get(call.module), call.gradients and call.caller in observation.trained_calls
    return trained and module is not None and not _is_frozen(module)


def _has_statistics(module: nn.Module) -> bool:
    return isinstance(module, BatchNorm) and bool(module.track_running_stats)


def _is_frozen(module: nn.Module) -> bool:
    """Returns whether a module is at rest by intent: without effect, or with parameters that are not trained."""
    if isinstance(module, DropoutNd):
        return module.p == 0
    parameters: list[torch.Tensor] = list(module.parameters())
    return bool(parameters) and not any(parameter.requires_grad for parameter in parameters)
