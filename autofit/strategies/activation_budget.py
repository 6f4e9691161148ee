"""Activation memory budget: the share of what compiled code would keep for the backward pass that it may keep.

torch.compile recomputes the rest (`torch._functorch.config.activation_memory_budget`). The share is of one graph, and
what it saves is not monotonic (reference/strategy_tuners.md 4.2), so a few values are tried and measured.

torch 2.11 and 2.13 also recompute random numbers, and draw others than in the forward pass: gradients are then wrong,
without an error (pytorch issue 190758; tests/strategies/test_activation_budget.py measures it). So the step must draw
none. The modules are checked before the knob is offered, and each graph when it is compiled.
"""

import sys
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

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
    drawing = _drawing_module(facts.model)
    return drawing and random_numbers(drawing)


def _drawing_module(model: nn.Module) -> str:
    """Returns a module that draws random numbers by its attributes, such as a dropout; "" if there is none.

    Numbers that are drawn elsewhere are found when the graph is compiled.
    """
    for name, module in model.named_modules():
        if not module.training:
            continue
        rates = [key for key, value in vars(module).items() if "drop" in key and type(value) is float and value > 0]
        if rates or (isinstance(module, _DropoutNd) and module.p > 0):
            return f"{type(module).__name__} {name}".rstrip()
    return ""


def random_numbers(origin: str) -> str:
    """Returns the reason for a step in which a module or an operator draws random numbers."""
    return (
        f"the step draws random numbers ({origin}); torch.compile would draw others when it recomputes them, and the "
        "gradient would be wrong"
    )


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
