"""Opening: what a child process opens, and the environment that it wants. Never loads torch."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from autofit.chips import StandIn
from autofit.core.briefing import Briefing, Options

HOST_LIMIT_ENVIRONMENT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
"""With these set before the process starts, freed tensors go back to the system at once, so that a limit on the data
segment falls close to the tensors' sum (reference/memory_prediction.md section 6). They slow the process down to a
half: never time a step under them."""
HIDING_ENVIRONMENT = {"CUDA_VISIBLE_DEVICES": "", "HIP_VISIBLE_DEVICES": "", "ONEAPI_DEVICE_SELECTOR": "*:cpu"}
"""With these a child that stands in for a device takes no memory of those that are here: the user's code sees none."""
SURVEY = "survey"
"""The phase in which a child seeks the search space; one that is told the space has none."""


@dataclass(frozen=True, slots=True)
class Target:
    """What the child opens.

    Attributes:
        name: `file.py:function` or `module:function`.
        arguments: keyword arguments for the function.
        overrides: fields of the workload that win over what the function gave.
        device: the device to use; None lets the child choose.
        options: what is asked of the search.
        stand_in: the device to stand in for: the child only traces, and sees no accelerator. None: it probes.
    """

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    overrides: Mapping[str, Any] = field(default_factory=dict)
    device: str | None = None
    options: Options = field(default_factory=Options)
    stand_in: StandIn | None = None

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables that the child wants."""
        return {} if self.stand_in is None else HIDING_ENVIRONMENT

    def request(self, enforce: bool, memory_bytes: int | None, known: Briefing | None = None) -> dict[str, Any]:
        """Returns the request that opens this target.

        Args:
            enforce: as in `Options`.
            memory_bytes: wins over the memory budget of the options; None leaves it to them.
            known: what an earlier child found, so that this one need not look; None: it looks.
        """
        budget = self.options.memory_budget if memory_bytes is None else memory_bytes
        changes: dict[str, Any] = {"enforce": enforce, "may_move": True}
        if budget is not None:
            changes["memory_budget"] = budget
        options = self.options.model_copy(update=changes)
        return {
            "do": "open",
            "target": self.name,
            "arguments": dict(self.arguments),
            "overrides": dict(self.overrides),
            "device": self.device,
            "options": options.model_dump(mode="json", exclude_unset=True),  # the rest is the function's to say
            "stand_in": None if self.stand_in is None else self.stand_in.model_dump(mode="json"),
            "known": None if known is None else _brief(known).model_dump(mode="json"),
        }


def _brief(known: Briefing) -> Briefing:
    """Returns a briefing without what only the search needs, which may be long."""
    space = known.space.model_copy(update={"forbidden": {}, "refused": ()})
    return known.model_copy(update={"space": space, "caveats": (), "gates": ()})
