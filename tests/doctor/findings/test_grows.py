"""Memory that each step leaves behind: ten leaks are found, ten look-alikes are not."""

import re
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from autofit.doctor.graphs import NODE_BYTES
from tests.doctor.cases import LEAKS, LOOK_ALIKES, SMALL_BYTES, Case, Small, diagnosed, keeping, line, mlp, of, shown

GROWTH = {"grows", "graph-kept", "graph-grows"}


def here(name: str) -> str:
    """Returns the place of a line of this file that has the comment `# bad: NAME`."""
    lines = Path(__file__).read_text(encoding="utf-8").splitlines()
    (number,) = (number for number, text in enumerate(lines, 1) if text.endswith(f"  # bad: {name}"))
    return f"test_grows.py:{number}"


@pytest.mark.parametrize("name", LEAKS)
def test_a_leak_is_found_with_its_holder(name: str) -> None:
    leak = LEAKS[name]
    found = diagnosed(leak.make())
    growth = [finding for finding in found.findings if finding.id in GROWTH and not finding.minor]
    assert [finding.id for finding in growth] == list(leak.kinds), "one finding for one cause"
    assert leak.text in growth[0].what
    holder = next((place.holder for place in growth[0].places if place.holder), "")
    assert leak.holder in holder
    assert bool(holder) == bool(leak.holder)
    assert holder in growth[0].what
    assert found.findings[0] == growth[0], "growth comes first"


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_a_look_alike_is_no_finding(name: str) -> None:
    found = diagnosed(LOOK_ALIKES[name]())
    assert shown(found) == []
    assert GROWTH.isdisjoint(finding.id for finding in found.findings), "not even a minor one"


@pytest.mark.parametrize("name", ["evaluation", "cycle", "hook", "state"])
def test_the_line_that_made_it_is_named(name: str) -> None:
    names = {"evaluation": "evaluation with gradients", "state": "hidden state"}
    found = diagnosed(LEAKS[names.get(name, name)].make())
    assert found.findings[0].places[0].line.endswith(line(name))
    assert line(name) in found.findings[0].what


@pytest.mark.parametrize(
    ("name", "bytes_per_step"), [("detached outputs", 4 * 64 * 10), ("view of an output", 4 * 64 * 10), ("cycle", 2560)]
)
def test_bytes_of_the_device_are_counted_per_step(name: str, bytes_per_step: int) -> None:
    found = diagnosed(LEAKS[name].make())
    size = of(found, "grows")[0].size
    assert size is not None
    assert size.bytes_per_step == bytes_per_step
    assert size.basis == "counted"
    assert found.levels[-1] - found.levels[-2] == bytes_per_step
    left = re.search(r"full after ([\d,]+) steps", found.findings[0].what)
    assert left is not None
    assert int(left[1].replace(",", "")) == (SMALL_BYTES - found.peak_bytes) // bytes_per_step


@pytest.mark.parametrize("name", ["losses", "outputs", "sum after backward", "sum before backward"])
def test_graphs_that_were_used_up_cost_main_memory(name: str) -> None:
    found = diagnosed(LEAKS[name].make())
    size = found.findings[0].size
    assert size is not None
    assert size.host_bytes_per_step is not None
    assert size.host_bytes_per_step % NODE_BYTES == 0
    assert 5 * NODE_BYTES <= size.host_bytes_per_step <= 30 * NODE_BYTES
    assert "main memory" in found.findings[0].what


def test_activations_of_a_graph_without_a_pass_are_all_counted() -> None:
    """Two activations of 16 KiB, the output of 2.5 KiB or its log-probabilities, and scalars."""
    found = diagnosed(LEAKS["evaluation with gradients"].make())
    size = of(found, "graph-kept")[0].size
    assert size is not None
    assert size.bytes_per_step is not None
    assert size.bytes_per_step == pytest.approx(found.levels[-1] - found.levels[-2], abs=16), "but the loss itself"
    assert size.bytes_per_step > 2 * 4 * 64 * 64
    assert "torch.no_grad()" in of(found, "graph-kept")[0].remedy


@pytest.mark.parametrize(
    ("name", "kind", "remedy"),
    [("losses", "list", "loss.item()"), ("detached outputs", "list", "maxlen"), ("dict", "dict", "maxlen")],
)
def test_a_container_may_have_a_limit_and_data_are_no_losses(name: str, kind: str, remedy: str) -> None:
    [found] = of(diagnosed(keeping(name)), "grows")
    assert found.evidence[0].startswith(f"A {kind} with room for more than 6 items")
    assert remedy in found.remedy


def test_of_several_tensors_in_a_dict_the_largest_is_named_with_its_own_key() -> None:
    [found] = of(diagnosed(keeping("several in a dict")), "grows")
    assert "float32 [64, 10]" in found.what
    assert "['out']" in found.what
    assert "loss.item()" in found.remedy


def test_slow_growth_is_minor() -> None:
    class Large(Small):
        def capacity_bytes(self) -> int:
            return 2**40

        def budget(self, memory, varies):  # type: ignore[no-untyped-def]  # as that of `Small`
            return super().budget(memory, varies).model_copy(update={"memory_bytes": 2**40})

    found = diagnosed(LEAKS["detached outputs"].make(), Large())
    assert [finding.minor for finding in of(found, "grows")] == [True]
    assert shown(found) == []


def probed(good: bool) -> Case:
    """Hooks on two layers keep what these return, or a number of it."""
    model, x, _ = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    seen = defaultdict[str, list[Any]](list)

    def on(name: str) -> Callable[..., None]:
        def probe(module: nn.Module, args: object, out: torch.Tensor) -> None:  # bad: probe
            shown = out.detach()  # bad: detached
            seen[name].append(shown.mean().item() if good else shown)

        return probe

    for name, width in (("first", 1), ("second", 4)):
        model[width].register_forward_hook(on(name))

    def step() -> None:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return Case(model, step)


def test_all_containers_that_grow_in_a_hook_are_named_with_the_lines_of_the_hook() -> None:
    [found] = of(diagnosed(probed(False)), "grows")
    assert "2 tensors per step, the largest float32 [64, 64]" in found.what
    assert "`seen['first'][" in found.places[0].holder
    assert f"in the closure of probe (tests/doctor/findings/{here('probe')}), a hook of " in found.places[0].holder
    assert re.search(r"and by `seen\['second'\]\[\d+\]` \([\d.]+ [KM]iB\)", found.what), "with its part of the size"
    assert f"kept from tests/doctor/findings/{here('detached')} on" in found.what
    assert found.places[1].line.endswith(here("detached"))
    assert found.size is not None
    assert found.size.bytes_per_step == 4 * 64 * (64 + 10)
    assert "deque(maxlen=...)" in found.remedy
    assert shown(diagnosed(probed(True))) == []


def test_of_many_containers_some_are_named_and_the_others_counted() -> None:
    model, x, _ = mlp()
    kept = {number: list[torch.Tensor]() for number in range(6)}

    def step() -> None:
        for number, each in enumerate(model(x).detach()[:6]):
            kept[number].append(each.clone())

    [found] = of(diagnosed(Case(model, step)), "grows")
    assert "6 tensors per step" in found.what
    assert found.what.count("`kept[") == 4
    assert found.what.endswith("and by 2 more")
