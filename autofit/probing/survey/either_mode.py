"""Either mode: gradients are compared in evaluation mode, or in training mode if the step runs in no other."""

from collections.abc import Callable
from dataclasses import replace

from autofit.probing.survey.gate_result import GateResult
from autofit.probing.survey.gradients import Build, Gradients, State
from autofit.probing.survey.module_modes import dropout_off
from autofit.probing.user_errors import named_error


def in_either_mode(build: Build, state: State, compare: Callable[[Gradients], GateResult]) -> GateResult:
    """Returns the result of a comparison in evaluation mode; in training mode, without dropout, if that fails.

    Args:
        build: makes a train step; its model's gradients are left as None.
        state: restores what a step changes besides gradients.
        compare: compares what the given object computes.
    """
    try:
        return compare(Gradients(build, state))
    except Exception as error:  # noqa: BLE001  # raised by the user's code: a step that runs in training mode only
        why = named_error(error)
    found = compare(Gradients(build, state, dropout_off))
    return replace(found, reason=f"{found.reason}; compared in training mode, as evaluation mode fails: {why}")
