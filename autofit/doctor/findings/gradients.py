"""Gradients and optimizer state that nothing uses."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import partial
from itertools import takewhile

from autofit.core.units import format_bytes
from autofit.doctor.diagnosis import LEAST_RATIO, Finding, Place, Size
from autofit.doctor.findings.base import Detector, at_peak, is_nothing
from autofit.doctor.observation import Observation
from autofit.doctor.seen import Dropped
from autofit.doctor.sites import NOWHERE, Site
from autofit.doctor.what_if import Change, frozen, only_used
from autofit.reports.sentences import counted

NO_UPDATE = "no optimizer stepped in the observed steps"
_FREEZE = (
    "freeze them with requires_grad_(False), or compute what is only a target under torch.no_grad(); give them to an "
    "optimizer only if they are to be trained"
)
_FREEZE_MEANWHILE = (
    "freeze the model that this loss does not train for this pass (requires_grad_(False)), and thaw it after"
)
_CUT = (
    "make the input of the model that this loss trains under torch.no_grad(), or, if its graph is used for another "
    "loss too, pass it on as tensor.detach()"
)
_EITHER = "if they are to be trained, give them to an optimizer; if not, freeze them with requires_grad_(False)"
_RENEW = "make the optimizer after the model was changed, from its present parameters"
_REGISTER = (
    "hold them in nn.ModuleList, nn.ModuleDict or nn.ParameterList, or as nn.Parameter, before the optimizer is made, "
    "and it trains them; if they are not to be trained, freeze them with requires_grad_(False)"
)


class _OfUpdates(Detector):
    """What is found only where an optimizer steps."""

    def unchecked(self, observation: Observation) -> str:
        """Returns why not, if there was no update."""
        return "" if observation.watch.optimizers else NO_UPDATE


class GradientWithoutOptimizer(_OfUpdates):
    """Gradients of parameters that no optimizer holds."""

    id = "gradient-without-optimizer"
    about = "gradients of parameters that no optimizer updates"

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields a finding for those that the model lists, and one for the others."""
        for foreign in _foreign(observation):
            yield self._found(observation, foreign)

    def _found(self, observation: Observation, foreign: Sequence[int]) -> Finding:
        names, watch = observation.names, observation.watch
        handles = [handle for handle, parameter in watch.gradients.items() if parameter in set(foreign)]
        gone, released = observation.needless(handles)
        saved_bytes = observation.saved_bytes(without=gone, ends_at=released)
        fields = at_peak(observation, saved_bytes, "at least")
        unlisted = foreign[0] in watch.unlisted
        lost = _lost(observation, foreign)
        reason = f"; an optimizer has {counted(lost, 'parameter')} instead that no watched model has" if lost else ""
        if unlisted:
            reason = "; model.parameters() does not list them, because a list, a dict or a plain attribute holds them"
        called = {} if lost else _called(observation, set(foreign))
        where = f" (called at {site})" if str(site := called.get(foreign[0], NOWHERE)) else ""
        share = sum(names[each][1].numel() for each in foreign) / max(sum(p.numel() for _, p in names.values()), 1)
        if lost:  # they are to be trained, and that saves nothing
            fields["size"] = None
        return Finding(
            id=self.id,
            what=(
                f"the backward pass computes the gradients of {counted(len(foreign), 'parameter')} "
                f"({share:.0%} of the model), such as {names[foreign[0]][0]}{where}, which no optimizer updates, "
                f"so that their memory and time are lost{reason}"
            ),
            remedy=_REGISTER if unlisted else _RENEW if lost else _EITHER if _partly(observation, foreign) else _FREEZE,
            places=tuple(observation.place_at(called.get(each, NOWHERE), names[each][0]) for each in foreign[:8]),
            **fields | {"minor": fields["minor"] and share < LEAST_RATIO},
        )

    def change(self, observation: Observation, finding: Finding) -> Change | None:
        """Returns these parameters frozen; None if they are to be trained."""
        names, first = observation.names, finding.places[0].module
        foreign = next(each for each in _foreign(observation) if names[each[0]][0] == first)
        if _lost(observation, foreign):
            return None
        return Change("these parameters frozen", partial(frozen, [names[each][1] for each in foreign]))


def _foreign(observation: Observation) -> list[list[int]]:
    """Returns the parameters with gradients that no optimizer has: those that a model lists, and the others.

    The others, which nothing clips or clears together, are left out if the user's code reads their gradients itself.
    """
    watch = observation.watch
    used = {
        parameter
        for handle, parameter in watch.gradients.items()
        if parameter in watch.unlisted and not watch.ran[watch.read_by[handle] - 1].backward
    }
    found = [each for each in observation.names if each in watch.with_gradient - observation.optimized - used]
    groups = [[each for each in found if (each in watch.unlisted) is unlisted] for unlisted in (False, True)]
    return [each for each in groups if each]


def _lost(observation: Observation, foreign: Sequence[int]) -> int:
    """Returns the number of parameters that an optimizer has in the place of these: of no watched model."""
    watch = observation.watch
    listed = foreign[0] not in watch.unlisted
    return len(observation.optimized - observation.names.keys() - watch.with_gradient) if listed else 0


def _partly(observation: Observation, foreign: Sequence[int]) -> bool:
    """Returns whether a model with one of these parameters has others that an optimizer updates."""
    models = ({id(each) for each in model.parameters()} for model in observation.watch.models.values())
    return any(not held.isdisjoint(foreign) and not held.isdisjoint(observation.optimized) for held in models)


def _called(observation: Observation, foreign: Set[int]) -> dict[int, Site]:
    """Returns where the outermost modules that have no other parameters were called, by id of the parameter."""
    sites, found = {call.module: call.site for call in reversed(observation.watch.calls)}, dict[int, Site]()
    for module, part in observation.modules.items():  # outer ones come first
        held = {id(each) for each in part.parameters()}
        if module in sites and held <= foreign:
            found = dict.fromkeys(held, sites[module]) | found
    return found


class GradientDropped(_OfUpdates):
    """Gradients that are zeroed or replaced before an optimizer reads them, as in a GAN without `detach`."""

    id = "gradient-dropped"
    about = "gradients that are zeroed before an optimizer reads them"

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields a finding for each backward pass that makes such gradients."""
        for line, dropped in _dropped(observation).items():
            size_bytes = {each.parameter: each.size_bytes for each in dropped}
            total_bytes, saved_bytes = sum(size_bytes.values()), _without(observation, line, dropped)
            name = observation.names.get(dropped[0].parameter, ("a parameter",))[0]
            yield Finding(
                id=self.id,
                what=(
                    f"the backward pass at {line} computes {counted(len(size_bytes), 'gradient')} "
                    f"({format_bytes(total_bytes)}), such as that of {name}, which are zeroed before an optimizer "
                    "reads them, so that their memory and time are lost"
                ),
                remedy=_FREEZE_MEANWHILE if _goes_on(observation, dropped) else _CUT,
                places=(Place(line=line),),
                size=None if is_nothing(observation, saved_bytes) else Size(peak_bytes=saved_bytes),
                minor=total_bytes < LEAST_RATIO * observation.peak_bytes,
            )

    def change(self, observation: Observation, finding: Finding) -> Change | None:
        """Returns a backward pass that computes only the gradients which are used. It still saves what all need."""
        names, line = observation.names, finding.places[0].line
        dropped = [each for each in _dropped(observation)[line] if each.parameter in names]
        unused = {
            number: [names[each.parameter][1] for each in dropped if each.number == number]
            for number in {each.number for each in dropped}
        }
        trained = [parameter for _, parameter in names.values()]
        about = f"the pass at {line} with inputs= that leave these parameters out"
        return Change(about, partial(only_used, unused, trained), bound="at least") if unused else None


def _dropped(observation: Observation) -> Mapping[str, Sequence[Dropped]]:
    """Returns the gradients that steps after the first have dropped, by the line of the pass that made them."""
    lines = defaultdict[str, list[Dropped]](list)
    for each in observation.watch.dropped:
        if each.step > 1 and each.parameter in observation.optimized:
            lines[_line(each)].append(each)
    return lines


def _line(dropped: Dropped) -> str:
    return dropped.site.user or dropped.site.library


def _goes_on(observation: Observation, dropped: Sequence[Dropped]) -> bool:
    """Returns whether the pass computes other gradients after these: what comes before them is trained."""
    watch, parameters = observation.watch, {each.parameter for each in dropped}
    last = max(each.made_at for each in dropped)  # of the last step
    following = takewhile(lambda ran: ran.backward, (ran for ran in watch.ran if ran.number > last))
    made = (watch.gradients.get(each) for ran in following for each in ran.results)
    return any(each is not None and each not in parameters for each in made)


def _without(observation: Observation, line: str, dropped: Sequence[Dropped]) -> int:
    """Returns by how much the peak is lower if passes at a line do not make or add to some gradients.

    The last passes have made such gradients, too, which are not zeroed yet.
    """
    watch, parameters = observation.watch, {each.parameter for each in dropped}
    pending = [each for parameter in parameters & watch.pending.keys() for each in watch.pending[parameter].passes]
    lost = [each for each in (*watch.dropped, *pending) if each.parameter in parameters and _line(each) == line]
    made = {(each.made_at, each.handle) for each in lost if each.handle is not None}
    sums = made & {(ran.number, each) for ran in watch.ran for each in ran.results if each not in ran.made}
    gone, released = observation.needless((handle for _, handle in made - sums), sums)
    return observation.saved_bytes(without=gone, ends_at=released)


class NoGradient(_OfUpdates):
    """Parameters of an optimizer that never get a gradient."""

    id = "no-gradient"
    about = "parameters that an optimizer holds and no loss reaches"

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding for all of them."""
        watch = observation.watch
        found = [
            (name, parameter)
            for each, (name, parameter) in observation.names.items()
            if each in observation.optimized & watch.followed
            and parameter.requires_grad
            and each not in watch.with_gradient
            and each not in observation.cut_off  # a finding of its own names the cause
        ]
        if not found or not watch.with_gradient:
            return
        size_bytes = sum(parameter.nbytes for _, parameter in found)
        yield Finding(
            id=self.id,
            what=(
                f"an optimizer has {counted(len(found), 'parameter')} ({format_bytes(size_bytes)}), such as "
                f"{found[0][0]}, which no loss of the {counted(len(watch.levels), 'watched step')} reaches, so that "
                "none of these steps trains them"
            ),
            remedy="if that is not intended, use their module in the loss; else freeze them or remove the module",
            places=tuple(Place(module=name) for name, _ in found[:8]),
        )


class FrozenState(Detector):
    """Optimizer state of parameters that are no longer trained."""

    id = "frozen-state"
    about = "optimizer state of parameters that are frozen"

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding for all of it."""
        if not observation.frozen_states:
            return
        names = [observation.names.get(each, ("a parameter",))[0] for each in observation.frozen_states]
        handles = [handle for state in observation.frozen_states.values() for handle in state]
        saved_bytes = observation.saved_bytes(without=handles)
        yield Finding(
            id=self.id,
            what=f"the optimizer keeps the state of {counted(len(names), 'frozen parameter')}, such as {names[0]}",
            remedy="make the optimizer anew after freezing, from the parameters that are trained",
            places=tuple(Place(module=name) for name in names[:8]),
            **at_peak(observation, saved_bytes),
        )


class ZeroedGradients(Detector):
    """Gradients that are set to zero instead of released, so that they live through the forward pass."""

    id = "zeroed-gradients"
    about = "gradients set to zero, which live through the forward pass"

    def find(self, observation: Observation) -> Iterator[Finding]:
        """Yields one finding for all gradients of the judged step."""
        gaps = observation.zero_gaps
        saved_bytes = observation.saved_bytes(gaps=gaps)
        if is_nothing(observation, saved_bytes):
            return
        yield Finding(
            id=self.id,
            what=f"the memory of {counted(len(gaps), 'gradient')}, set to zero, is in use through the forward pass",
            remedy="use optimizer.zero_grad() with its default set_to_none=True, after the update",
            places=observation.zeroing_places,
            **at_peak(observation, saved_bytes),
        )
