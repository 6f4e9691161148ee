"""Target: what a child process opens, and the environment variables that it needs. Never loads torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autofit.chips import StandIn
from autofit.core.briefing import Briefing, Options

HOST_LIMIT_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""Variables for a process with a real memory limit, set before it starts. Freed tensors then return to the system at
once, so that a limit on the data segment is close to the sum of the tensors (reference/memory_prediction.md section 6).
They halve the speed of the process: never time a step under them."""
HIDING_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ONEAPI_DEVICE_SELECTOR": "*:cpu"}
"""Variables that hide all accelerators from a child that stands in for a device, so that it takes no memory on them."""
OTHER_VERSION = (
    "the installed autofit was changed while the search ran, so that its processes no longer understand each other. "
    "The study keeps all finished trials: the same command resumes from them."
)


@dataclass(frozen=True, slots=True)
class Target:
    """What the child opens.

    Attributes:
        name: `file.py:function` or `module:function`.
        arguments: keyword arguments for the function.
        overrides: fields of the workload that override what the function returned.
        device: the device to use; None lets the child choose.
        options: options of the search.
        evaluation: whether to open the evaluation of the workload, on its `eval_loader`, instead of its training.
        stand_in: the device to stand in for: the child only traces, and sees no accelerator. None: the child probes.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    options: Options = field(default_factory=Options)
    stand_in: StandIn | None = None
    evaluation: bool = False

    @property
    def environment(self) -> Mapping[str, str]:
        """Environment variables for the child."""
        return {} if self.stand_in is None else HIDING_ENVIRONMENT

    def request(self, enforce: bool, known: Briefing | None = None) -> dict[str, Any]:
        """Returns the request that opens this target; `enforce` as in `Options`.

        `known` is what an earlier child found, so that this child skips the survey and keeps its budget: available
        memory fluctuates, and a training's resident bytes are already taken off. Its parts that only the search needs
        are left out, since they may be long.
        """
        changes: dict[str, Any] = {"enforce": enforce, "own_process": True}
        if self.options.memory_budget is not None:
            changes["memory_budget"] = self.options.memory_budget
        if known is not None:
            changes |= {"memory_budget": known.budget.memory_bytes, "resident_bytes": 0}
            space = known.space.model_copy(update={"forbidden": (), "refused": ()})
            known = known.model_copy(update={"space": space, "caveats": ()})
        options = self.options.model_copy(update=changes)
        return {
            "do": "open",
            "target": self.name,
            "arguments": dict(self.arguments),
            "overrides": dict(self.overrides),
            "device": self.device,
            "evaluation": self.evaluation,
            "options": options.model_dump(mode="json", exclude_unset=True),  # the function may set the rest
            "stand_in": None if self.stand_in is None else self.stand_in.model_dump(mode="json"),
            "known": None if known is None else known.model_dump(mode="json"),
        }
