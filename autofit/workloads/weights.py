"""Weighing: what micro batches are weighed by, where the loss is a mean over something else than samples."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from autofit.core.errors import PlanFileError

WEIGHING = "weighing"
"""Setting of an `Environment` that names the weighing; absent where micro batches are weighed by their samples."""

SAMPLES, COLLATED = "samples", "collated"
"""Name and value of the setting for batches that hold as many samples as were collated into them, whatever the shapes
of their tensors; absent where shapes tell the number of samples."""

_STEP = r"\[\d+\]|\['[^'\\\n]*'\]|\.[^\W\d]\w*"
_TEXT = re.compile(rf"batch(?P<where>(?:{_STEP})*)(?P<shifted>\[\.\.\., 1:\])?(?: != (?P<ignored>-?\d+))?")


@dataclass(frozen=True, slots=True)
class Weighing:
    """The useful entries of one tensor of a batch: tokens, pixels, steps. The loss is a mean over as many.

    As text it is the Python expression whose sum counts them, such as "batch['labels'][..., 1:] != -100".

    Attributes:
        where: what follows "batch" to reach the tensor: "['labels']", "[1]", ".mask"; "" is the batch itself.
        shifted: whether the first entry along the last dimension does not count: a causal language model has nothing
            to tell it from.
        ignored: the value that does not count; None when the values themselves are added up (lengths, weights).
    """

    where: str
    shifted: bool = False
    ignored: int | None = None

    def __str__(self) -> str:
        compared = "" if self.ignored is None else f" != {self.ignored}"
        return f"batch{self.where}{'[..., 1:]' if self.shifted else ''}{compared}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Returns the weighing that `text` says, or None; nothing of it is evaluated."""
        found = _TEXT.fullmatch(text)
        if found is None:
            return None
        ignored = found["ignored"]
        return cls(found["where"], found["shifted"] is not None, None if ignored is None else int(ignored))

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Self | None:
        """Returns the weighing of an environment's settings, or None for weights by samples.

        Raises:
            PlanFileError: the settings say something else.
        """
        text = settings.get(WEIGHING)
        found = None if text is None else cls.parse(text)
        if text is not None and found is None:
            raise PlanFileError(
                f"the plan's environment has {WEIGHING}: {text!r}; expected the entries of a batch, such as "
                "\"batch['labels'] != -100\". Correct the plan file, or tune again."
            )
        return found

    @property
    def steps(self) -> tuple[str, ...]:
        """The parts of `where`, one for each container on the way."""
        return tuple(re.findall(_STEP, self.where))
