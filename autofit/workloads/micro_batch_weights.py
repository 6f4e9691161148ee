"""Weighing: the weights of micro batches if the loss is a sum, or a mean over entries other than samples."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from autofit.core.environment import WEIGHING
from autofit.core.errors import PlanFileError

SAMPLES, COLLATED = "samples", "collated"
"""Name and value of the setting for batches whose number of samples is counted when they are collated. Absent if shapes
give the number of samples."""

_STEP = r"\[\d+\]|\['[^'\\\n]*'\]|\.[^\W\d]\w*"
_TEXT = re.compile(rf"batch(?P<where>(?:{_STEP})*)(?P<shifted>\[\.\.\., 1:\])?(?: != (?P<ignored>-?\d+))?")
_ONE = "1"


@dataclass(frozen=True, slots=True)
class Weighing:
    """The useful entries of one tensor of a batch (tokens, pixels, time steps), over which the loss is a mean.

    As text it is the Python expression whose sum counts them, such as "batch['labels'][..., 1:] != -100". The text of
    `SUM` is "1".

    Attributes:
        where: path of the tensor after "batch": "['labels']", "[1]", ".mask". "" is the batch itself.
        shifted: whether the first entry along the last dimension is not counted, as in causal language models, where
            the first token is never a target.
        ignored: the value that is not counted. None if the values themselves are summed (lengths, weights).
        summed: whether the loss is a sum over samples, so that each micro batch has a weight of 1 whatever it holds.
    """

    where: str
    shifted: bool = False
    ignored: int | None = None
    summed: bool = False

    def __str__(self) -> str:
        if self.summed:
            return _ONE
        compared = "" if self.ignored is None else f" != {self.ignored}"
        return f"batch{self.where}{'[..., 1:]' if self.shifted else ''}{compared}"

    @classmethod
    def parse(cls, text: str) -> Self | None:
        """Parses `text` without evaluating it. Returns None if it is not a weighing."""
        if text == _ONE:
            return cls("", summed=True)
        found = _TEXT.fullmatch(text)
        if found is None:
            return None
        ignored = found["ignored"]
        return cls(found["where"], found["shifted"] is not None, None if ignored is None else int(ignored))

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> Self | None:
        """Returns the weighing of an environment's settings, or None if weights are by samples.

        Raises:
            PlanFileError: the setting is not a weighing.
        """
        if (text := settings.get(WEIGHING)) is None:
            return None
        if (found := cls.parse(text)) is None:
            raise PlanFileError(
                f"the plan's environment has {WEIGHING}: {text!r}; expected the entries of a batch, such as "
                '"batch[\'labels\'] != -100", or "1" for a sum. Correct the plan file, or tune again.'
            )
        return found

    @property
    def steps(self) -> tuple[str, ...]:
        """The parts of `where`, one per nested container."""
        return tuple(re.findall(_STEP, self.where))


SUM = Weighing("", summed=True)
"""The weighing of a loss that is a sum over samples."""
