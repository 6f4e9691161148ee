"""Catalogue: devices by name, for questions about a device that is not here.

Its figures are in `chips.json`. Never loads torch.
"""

import re
from contextlib import suppress
from functools import cache
from importlib.resources import files
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from autofit.core.errors import UsageError
from autofit.core.work import Ceilings

_NOISE = ("nvidia", "tesla", "geforce", "gpu", "graphics", "card")
_KINDS = ("cuda", "xpu", "mps", "gpu", "rocm", "hip")
OPERATOR_S = 20e-6
"""Issuing one operator of a training step takes so long on a host, autograd and the user's Python included: a GPT's
step of 131 operators took 2.5 ms on a device that computes nothing, with one core of an EPYC."""
_HELP = "Give one of them; or leave the device out and give only the memory, such as 24GiB"


class StandIn(BaseModel):
    """The device that a worker is to stand in for.

    Attributes:
        type: torch's name of the device type; "cpu" for the machine itself, which nothing has to stand in for.
        name: as its maker calls it.
        capacity_bytes: its memory; None where only a budget is known.
        capability: compute capability; it decides which kernels run.
        multiprocessors: their number.
        threads: that one multiprocessor holds at most.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["cuda", "cpu"] = "cuda"
    name: str = "a CUDA device like an A100"
    capacity_bytes: int | None = None
    capability: tuple[int, int] = (8, 0)
    multiprocessors: int = 108
    threads: int = 2048


class Card(BaseModel):
    """A device and what is published of it.

    Attributes:
        name: as the driver calls it.
        aliases: other names that people use.
        capacity_bytes: memory as torch reports it; it differs by up to 1 % with the driver and with error correction.
        capability: compute capability.
        multiprocessors: their number.
        threads: that one multiprocessor holds at most.
        tflops: peak rate of products in 10^12 operations a second by precision, dense; None where nothing backs a
            figure.
        bandwidth_bytes_per_s: of the device's memory; None likewise.
        sources: where the capacity, the chip's facts and the two ceilings are from.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

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
        """Returns what a worker needs to know to stand in for this device."""
        return StandIn(
            name=self.name,
            capacity_bytes=self.capacity_bytes,
            capability=self.capability,
            multiprocessors=self.multiprocessors,
            threads=self.threads,
        )

    def ceilings(self) -> Ceilings | None:
        """Returns how fast it is at best; None where its bandwidth is not known."""
        if self.bandwidth_bytes_per_s is None:
            return None
        rates: dict[str, float] = {name: 1e12 * rate for name, rate in self.tflops.items() if rate is not None}
        return Ceilings(flops_per_s=rates, bytes_per_s=self.bandwidth_bytes_per_s, operator_s=OPERATOR_S, ahead=True)


class _File(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_name: Literal["autofit.devices/1"] = Field(alias="schema")
    devices: tuple[Card, ...]


@cache
def cards() -> tuple[Card, ...]:
    """Returns every device that is known."""
    text = files("autofit").joinpath("chips.json").read_text(encoding="utf-8")
    return _File.model_validate_json(text).devices


def find(name: str) -> Card:
    """Returns the device called `name`; case, spaces and the maker's name do not matter ("h200", "RTX-4090").

    Raises:
        UsageError: no device is called so, or several are.
    """
    words = _words(name)
    exact = [card for card in cards() if any("".join(_words(known)) == "".join(words) for known in _names(card))]
    found = exact or [card for card in cards() if words and any(set(words) <= set(_words(n)) for n in _names(card))]
    if len(found) == 1:
        return found[0]
    if found:
        raise UsageError(f"{name!r} may be any of {_listed(found)}. {_HELP}.")
    if name.partition(":")[0] in _KINDS:
        raise UsageError(
            f"{name!r} is a kind of device, and what it has is to be known here: give the name of the card "
            "(nvidia-smi -L shows it). One that is in this machine is better measured, by autofit tune."
        )
    raise UsageError(f"unknown device {name!r}; known are {_listed(cards())}, and cpu for this machine. {_HELP}.")


def ceilings_of(name: str) -> Ceilings | None:
    """Returns the ceilings of the device called `name`; None where it is not known, or several are called so."""
    with suppress(UsageError):
        return find(name).ceilings()
    return None


def _names(card: Card) -> tuple[str, ...]:
    return (card.name, *card.aliases)


def _words(name: str) -> list[str]:
    return [word for word in re.findall(r"[a-z0-9]+", name.lower()) if word not in _NOISE]


def _listed(found: list[Card] | tuple[Card, ...]) -> str:
    return ", ".join(card.aliases[0] for card in found)
