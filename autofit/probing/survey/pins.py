"""Pins: knobs that the user gave a value. Only plans with these values are searched."""

from collections.abc import Mapping, Sequence

from autofit.core.errors import SpaceError
from autofit.core.knob import Knob
from autofit.core.plan import ACCUMULATION_STEPS, KnobValue, Plan
from autofit.core.space import Refusal, SearchSpace, SpaceFacts


def narrowed(knob: Knob, pinned: Mapping[str, KnobValue], refused: Sequence[Refusal]) -> Knob:
    """Returns a knob with its default and its pinned value alone; a knob that is not pinned is unchanged.

    The default stays, since the baseline is measured for comparison.

    Args:
        knob: what a strategy offers.
        pinned: value by knob.
        refused: values that were left out, with the reason.

    Raises:
        SpaceError: the knob has no such value here; the message gives the reason and the values that it has.
    """
    if knob.name not in pinned:
        return knob
    value = pinned[knob.name]
    if not knob.admits(value):
        named = f"{knob.name}={value}"
        reasons = [refusal.reason for refusal in refused if refusal.name == named]
        why = f": {reasons[0]}" if reasons else ""
        raise SpaceError(
            f"{named} cannot be pinned{why}. Expected one of {_listed(knob.values)}. Pin another value, or none."
        )
    return knob.only((knob.default, value))


def check_names(pinned: Mapping[str, KnobValue], knobs: Mapping[str, Knob], refused: Sequence[Refusal]) -> None:
    """Checks that every pinned knob is in play.

    Args:
        pinned: value by knob.
        knobs: all knobs that were offered, before pinning, by name.
        refused: strategies and values that were left out, with the reason.

    Raises:
        SpaceError: one is not; the message lists the knobs that are.
    """
    if ACCUMULATION_STEPS in pinned:
        raise SpaceError(
            f"{ACCUMULATION_STEPS} cannot be pinned: it follows from the global batch and the micro batch. Pin "
            "micro_batch_size, and give the global batch."
        )
    for name in pinned:
        if name not in knobs:
            reasons = [f"{refusal.name}: {refusal.reason}" for refusal in refused if name.startswith(refusal.name)]
            why = f" ({reasons[0]})" if reasons else ""
            playing = "; ".join(
                f"{k.name}: {_listed(k.values)}" for k in knobs.values() if k.name != ACCUMULATION_STEPS
            )
            raise SpaceError(
                f"{name!r} is not a knob in play here{why}. The knobs in play are {playing}. Pin one of these."
            )


def check_conflict(facts: SpaceFacts) -> None:
    """Checks that a plan with all pinned values may be run.

    Raises:
        SpaceError: strategies rule out every combination with these values; the message gives the reason of one.
    """
    space = SearchSpace(facts)
    if any(space.unpinned(each) is None and space.conflict(each) is None for each in space.combinations()):
        return
    pins = ", ".join(f"{name}={value}" for name, value in facts.pinned.items())
    pinned = Plan(values=facts.pinned)
    reasons = (one.reason for one in sorted(facts.forbidden, key=lambda one: not one.applies_to(pinned)))
    reason = next(reasons, "no combination has all of them")
    raise SpaceError(f"{pins} cannot be pinned together: {reason}. Pin fewer knobs.")


def notes(facts: SpaceFacts) -> list[Refusal]:
    """Returns for each pinned knob why its other values were not searched."""
    return [Refusal(name=name, reason=f"pinned to {value}") for name, value in facts.pinned.items()]


def _listed(values: Sequence[KnobValue]) -> str:
    return ", ".join(map(str, values))
