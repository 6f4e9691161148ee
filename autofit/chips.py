"""Chips: a catalogue of devices by name, for questions about a device that is not present.

The figures are in `chips.json`. Never imports torch.
"""

import re
from contextlib import suppress
from difflib import SequenceMatcher
from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import Field

from autofit.core.errors import UsageError
from autofit.core.strict import Strict
from autofit.core.work import Ceilings

_NOISE = ("nvidia", "tesla", "geforce", "tensor", "core", "gpu", "graphics", "card")
_KINDS = ("cuda", "xpu", "mps", "gpu", "rocm", "hip")
OPERATOR_S = 20e-6
"""Time to issue one operator of a training step on a host, including autograd and the user's Python: a GPT step of 131
operators took 2.5 ms on a device that computes nothing, with one core of an EPYC."""
_HELP = "Pass one of them, or leave the device out and pass only the memory, such as 24GiB"


class StandIn(Strict):
    """The device for which a worker stands in.

    Attributes:
        type: torch's name of the device type; "cpu" for the machine itself, which needs no stand-in.
        name: the manufacturer's name of the device.
        capacity_bytes: memory of the device; None if only a budget is known.
        capability: compute capability, which decides which kernels run.
        multiprocessors: number of multiprocessors.
        threads: maximum number of threads per multiprocessor.
    """

    type: Literal["cuda", "cpu"] = "cuda"
    name: str = "a CUDA device like an A100"
    capacity_bytes: int | None = None
    capability: tuple[int, int] = (8, 0)
    multiprocessors: int = 108
    threads: int = 2048

    @property
    def is_host(self) -> bool:
        """Whether the device is the machine itself."""
        return self.type == "cpu"


class Card(Strict):
    """A device and its published specifications.

    Attributes:
        name: the driver's name of the device.
        aliases: other common names.
        capacity_bytes: memory as torch reports it. It varies by up to 1 % with the driver and error correction.
        capability: compute capability.
        multiprocessors: number of multiprocessors.
        threads: maximum number of threads per multiprocessor.
        tflops: peak rate of dense products in 10^12 operations per second, by precision; None without a source.
        bandwidth_bytes_per_s: memory bandwidth; None without a source.
        sources: sources of the capacity, the chip's properties and the peak rates.
    """

    name: str
    aliases: tuple[str, ...]
    capacity_bytes: int
    capability: tuple[int, int]
    multiprocessors: int
    threads: int
    tflops: dict[Literal["fp32", "tf32", "bf16", "fp16"], float | None]
    bandwidth_bytes_per_s: int | None
    sources: dict[Literal["capacity", "chip", "ceilings"], str]

    def stand_in(self) -> StandIn:
        """Returns the properties that a worker needs to stand in for this device."""
        return StandIn.model_validate(self.model_dump(include=StandIn.model_fields.keys() - {"type"}))

    def ceilings(self) -> Ceilings | None:
        """Returns the peak rates of the device; None if its bandwidth is unknown."""
        if self.bandwidth_bytes_per_s is None:
            return None
        rates: dict[str, float] = {name: 1e12 * rate for name, rate in self.tflops.items() if rate is not None}
        return Ceilings(flops_per_s=rates, bytes_per_s=self.bandwidth_bytes_per_s, operator_s=OPERATOR_S, ahead=True)


class _File(Strict):
    schema_name: Literal["autofit.devices/1"] = Field(alias="schema")
    devices: tuple[Card, ...]


@cache
def cards() -> tuple[Card, ...]:
    """Returns all known devices."""
    text = files("autofit").joinpath("chips.json").read_text(encoding="utf-8")
    return _File.model_validate_json(text).devices


def stand_in_for(name: str) -> StandIn:
    """Returns the properties of the device called `name`; "cpu" is the machine itself.

    Raises:
        UsageError: no device has this name, or several have.
    """
    host = StandIn(type="cpu")
    return host if name.strip().lower() == host.type else find(name).stand_in()


def find(name: str) -> Card:
    """Returns the device called `name`: by one of its names, or by words of several of them in any order.

    Case, spaces and the manufacturer's name are ignored, and so is the number of an SXM socket: "h200", "RTX-4090",
    "H100 SXM5 80GB".

    Raises:
        UsageError: no device has this name, or several have. The message lists the known ones, the closest first.
    """
    words = _words(name)
    exact = [card for card in cards() if any("".join(_words(known)) == "".join(words) for known in _names(card))]
    found = exact or [card for card in cards() if words and set(words) <= set(_words(" ".join(_names(card))))]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{name!r} may be any of {_listed(found, name)}. {_HELP}.")
    if name.partition(":")[0] in _KINDS:
        raise UsageError(
            f"{name!r} is a type of device; expected the name of a card with known properties (see nvidia-smi -L). "
            "Give such a name. For a card in this machine, prefer autofit tune, which measures."
        )
    known = _listed(cards(), name)
    raise UsageError(f"unknown device {name!r}; expected one of {known}, or cpu for this machine. {_HELP}.")


def ceilings_of(name: str) -> Ceilings | None:
    """Returns the peak rates of the device called `name`; None if it is unknown or the name is ambiguous."""
    with suppress(UsageError):
        return find(name).ceilings()
    return None


def _names(card: Card) -> tuple[str, ...]:
    return (card.name, *card.aliases)


def _words(name: str) -> list[str]:
    """Returns the words of a name: "H100SXM5-80G" has those of "h100 sxm 80gb"."""
    text = re.sub(r"(rtx|sxm|pcie|nvl)", r" \1", re.sub(r"[^a-z0-9]+", " ", name.lower()))
    text = re.sub(r"\b(\d+) ?g(i?b)?\b", r"\1gb", re.sub(r"\bsxm\d", "sxm ", text))
    return [word for word in re.sub(r"\brtx", "rtx ", text).split() if word not in _NOISE]


def _listed(found: list[Card] | tuple[Card, ...], name: str) -> str:
    """Returns the cards in words, those first that are called most like `name`."""
    wanted = "".join(_words(name))

    def likeness(card: Card) -> float:
        return max(SequenceMatcher(None, wanted, "".join(_words(known))).ratio() for known in _names(card))

    return ", ".join(card.aliases[0] for card in sorted(found, key=likeness, reverse=True))
