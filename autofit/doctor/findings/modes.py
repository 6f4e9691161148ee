"""Switches of modules that are not as a training needs them."""

from collections.abc import Iterator

import torch
from torch import nn

from autofit.core.units import format_names
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
        """Yields one finding for all models."""
        switched = [
            (name or type(model).__name__, part)
            for name, model in observation.watch.models.items()
            for part in model.modules()
            if getattr(part, "gradient_checkpointing", False) is True
        ]
        if not switched or observation.watch.recomputed or not observation.watch.with_gradient:
            return
        name, part = switched[0]
        mode = "" if part.training else "; it is in evaluation mode, in which transformers does not checkpoint"
        yield Finding(
            id=self.id,
            what=(
                f"gradient checkpointing is on in {counted(len(switched), 'module')} of {name}, but the backward pass "
                f"runs no module again{mode}"
            ),
            remedy="call model.train(), set use_cache=False, and look for a warning about inputs without requires_grad",
            places=(Place(module=name),),
        )


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
