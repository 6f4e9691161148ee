"""DESIGN.md 3: nobody names a member of a family elsewhere; knobs and devices say of themselves what is asked."""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

from autofit import devices, strategies
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE
from tests.rules.source import ROOT, modules

OF_EVERY_PLAN = {MICRO_BATCH_SIZE, ACCUMULATION_STEPS}
"""Knobs that every plan has. `autofit.core.plan` names them for all."""
KNOBS = {
    name: Path(inspect.getfile(member)).relative_to(ROOT)
    for member in strategies.BUILT_IN
    for name in {member.name, *member.owns} - OF_EVERY_PLAN
}
"""The file of each built-in strategy, by its name and the names of its knobs."""
DEVICES = {member.type: Path(inspect.getfile(member)).relative_to(ROOT) for member in devices.BUILT_IN}
"""The file of each built-in device, by its type."""
TENSORS = "asks where torch has a tensor or a model; a `torch.device` can be asked for nothing but its type"
EXCEPTIONS = {
    "autofit/cli/arguments.py": "`--help` and completion list the built-in ones without torch; tests compare the lists",
    "autofit/chips.py": "`StandIn.is_host`, which everybody else asks",
    "autofit/core/environment.py": "`Environment.is_host`, which everybody else asks",
    "autofit/doctor/findings/plans.py": "a finding is what a value of a knob saves, if the workload offers it",
    "autofit/doctor/waits.py": TENSORS,
    "autofit/doctor/watch.py": TENSORS,
    "autofit/estimation/estimation.py": "the knob whose values are named without it in the table of an estimate",
    "autofit/exporters/": "an exporter has a table of the knobs that it can express; others are listed as unmapped",
    "autofit/integrations/": "a trainer has switches for some knobs, fixes some when it is made, and lacks others",
    "autofit/devices/of_model.py": TENSORS,
    "autofit/gates/": TENSORS,
    "autofit/guard/": TENSORS,
    "autofit/strategies/deferred_logits.py": "tensors have an attribute with the name of a knob",
    "autofit/strategies/memory_format.py": TENSORS,
    "autofit/strategies/precision.py": "torch's setting of TF32 is one of CUDA, and a draft has a `torch.device`",
    "autofit/tracing/": TENSORS,
    "autofit/workloads/batch_store.py": TENSORS,
}
"""Files and folders that name members other than their own, each with the reason."""


def named(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Yields the members that code names: texts that are the name of a knob or a strategy, and types of devices.

    A type of device counts where something is compared with it, and where a device is chosen by it.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value in KNOBS:
            yield node.value, node.lineno
        elif isinstance(node, ast.Compare) or (
            isinstance(node, ast.Call) and ast.unparse(node.func).endswith("choose")
        ):
            texts = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
            yield from ((name, node.lineno) for name in DEVICES if name in texts)


def found() -> Iterator[tuple[str, int, str]]:
    """Yields each member that a module other than its own names: path, line, name."""
    for module in modules():
        for name, line in named(module.tree):
            if module.path not in (KNOBS.get(name), DEVICES.get(name)):
                yield str(module.path), line, name


def test_no_module_names_a_built_in_knob_or_device_of_another() -> None:
    assert [one for one in found() if not one[0].startswith(tuple(EXCEPTIONS))] == []


def test_each_exception_is_still_needed() -> None:
    paths = {path for path, _, _ in found()}
    assert [kept for kept in EXCEPTIONS if not any(path.startswith(kept) for path in paths)] == []


@pytest.mark.parametrize(
    "code",
    [
        'knob.name == "precision"', 'plan.values.get("checkpointed_blocks", 0)', 'name.startswith(("checkpointing",))',
        'environment.device_type == "cpu"', 'device in ("cuda", "cpu")', 'devices.choose("cpu")',
    ],
)  # fmt: skip
def test_the_rule_sees_names(code: str) -> None:
    assert list(named(ast.parse(code)))


@pytest.mark.parametrize(
    "code", ["environment.is_host", 'torch.empty(1, device="cpu")', 'print("the precision")', "knob.same_memory"]
)
def test_the_rule_lets_other_code_pass(code: str) -> None:
    assert not list(named(ast.parse(code)))
