"""Activation memory budget: the share of what compiled code would keep for the backward pass that it may keep.

torch.compile recomputes the rest (`torch._functorch.config.activation_memory_budget`). The share is of one graph, and
what it saves is not monotonic (reference/strategy_tuners.md 4.2), so a few values are tried and measured.

torch 2.11 and 2.13 also recompute random numbers, and draw others than in the forward pass: gradients are then wrong,
without an error (pytorch issue 190758; tests/strategies/test_activation_budget.py measures it). So the step must draw
none. This is checked in a rehearsal before the knob is offered, and again in each graph that is compiled.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from autofit.core.errors import Untraceable
from autofit.strategies.base import Facts
from autofit.workloads.random_operators import draws

FUNCTORCH, INDUCTOR = "torch._functorch.config", "torch._inductor.config"
OWN_PASS = f"the user has set {INDUCTOR}.joint_custom_pre_pass, with which autofit would check each graph"


def refusal(facts: Facts) -> str:
    """Returns why compiled code keeps what it would without a budget; "" if it may have one."""
    if not facts.training:
        return "inference has no backward pass and keeps no activations"
    functorch, inductor = sys.modules.get(FUNCTORCH), sys.modules.get(INDUCTOR)  # not loaded: never changed
    if functorch is not None and functorch.activation_memory_budget != 1:
        return (
            f"{FUNCTORCH}.activation_memory_budget is {functorch.activation_memory_budget}, which the user has chosen"
        )
    if inductor is not None and inductor.joint_custom_pre_pass is not None:
        return OWN_PASS
    if facts.rehearse is None:
        return "the user's step could not be inspected for random numbers"
    seen = _Draws()

    @contextmanager
    def watch(model: nn.Module) -> Iterator[None]:
        with seen:
            yield

    try:
        facts.rehearse(watch)
    except Untraceable as error:
        return f"the user's step cannot be inspected for random numbers: {error.reason} ({error.where})"
    return seen.drawn and random_numbers(seen.drawn)


def random_numbers(operator: str) -> str:
    """Returns the reason for a step that draws random numbers with `operator`."""
    return (
        f"the step draws random numbers ({operator}); torch.compile would draw others when it recomputes them, and the "
        "gradient would be wrong"
    )


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no type for it
    """Notes the first operator that draws random numbers, in `drawn`; "" if there is none."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn = ""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Runs an operator."""
        if not self.drawn and draws(func, args, kwargs or {}):
            self.drawn = str(func)
        return func(*args, **(kwargs or {}))


@dataclass(frozen=True, slots=True)
class WithinBudget:
    """A backend of torch.compile: its default one within a budget. Equal ones share code, since torch compares them.

    The budget holds while a graph is compiled, so that other code of the process never sees it.
    """

    share: float

    def __call__(self, graph: Any, inputs: Any) -> Any:
        """Compiles a graph of the forward pass, and its backward pass.

        Raises:
            RuntimeError: the graph draws random numbers, or the user has a pass of their own over it.
        """
        functorch: Any = import_module(FUNCTORCH)
        if import_module(INDUCTOR).joint_custom_pre_pass is not None:
            raise RuntimeError(f"{OWN_PASS}. Set it back to None, or tune again.")
        compile_fx: Any = import_module("torch._inductor.compile_fx")  # takes seconds, so only if a plan compiles
        with functorch.patch(activation_memory_budget=self.share):
            return compile_fx.compile_fx(graph, inputs, config_patches={"joint_custom_pre_pass": _check()})


@cache
def _check() -> Any:
    """Returns a pass over the graph of forward and backward that raises an error if it draws random numbers."""
    base: Any = import_module("torch._inductor.custom_graph_pass").CustomGraphPass

    class RefuseDraws(base):  # type: ignore[misc]  # its class is loaded with the compiler
        def __call__(self, graph: Any) -> None:
            for node in graph.nodes:
                if hasattr(node.target, "tags") and draws(node.target, node.args, node.kwargs):
                    raise RuntimeError(
                        f"found a step within a budget for activations that cannot have one: "
                        f"{random_numbers(str(node.target))}. Tune again for this model."
                    )

        def uuid(self) -> str:
            """Returns what stands for the pass in the key of torch's cache of compiled code."""
            return "autofit.strategies.activation_budget/1"

    return RefuseDraws()
