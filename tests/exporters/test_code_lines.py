"""The lines of plain PyTorch are code that does what the plan says."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit.core.plan import KnobValue
from autofit.exporters.code_lines import code_lines, compile_line, loader_line
from tests.conformance.test_exporters import EVIL, OWN, answer, of_blocks


def test_the_loader_line_makes_a_loader_of_the_plan() -> None:
    plan = OWN.replace(micro_batch_size=4)
    line = loader_line(plan, answer(plan))
    assert line is not None
    loader = eval(line, {"DataLoader": DataLoader, "dataset": TensorDataset(torch.zeros(8, 1))})
    assert [len(batch[0]) for batch in loader] == [4, 4]


@pytest.mark.parametrize(
    ("value", "flags"), [("for-loop", (False, False)), ("foreach", (True, False)), ("fused", (False, True))]
)
def test_the_optimizer_line_chooses_the_implementation(value: str, flags: tuple[bool, bool]) -> None:
    plan = OWN.replace(optimizer_implementation=value)
    line = code_lines(plan, answer(plan, settings={"optimizer": "SGD"}))["optimizer_implementation"]
    parameters = nn.Linear(2, 2).parameters()
    optimizer = eval(line.replace("...", "parameters"), {"torch": torch, "parameters": parameters})
    assert type(optimizer) is torch.optim.SGD
    assert (optimizer.defaults["foreach"], optimizer.defaults["fused"]) == flags


def test_tf32_is_switched_on_by_one_line_that_both_interfaces_of_torch_can_read() -> None:
    plan = OWN.replace(precision="tf32")
    line = code_lines(plan, answer(plan))["precision"]
    check = (
        "assert torch.get_float32_matmul_precision() == 'high' and torch.backends.cudnn.allow_tf32\n"
        "b = torch.backends\n"
        "print(b.cuda.matmul.fp32_precision, b.cudnn.conv.fp32_precision, b.cudnn.rnn.fp32_precision)"
    )
    code = f"import torch\n{line}\n{check}"
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.split(), done.stderr) == (["tf32"] * 3, "")


def test_only_what_one_line_can_say_is_said() -> None:
    plan = OWN.replace(precision="bf16", checkpointed_blocks="default")
    assert code_lines(plan, answer(plan)).keys() == {"micro_batch_size"}
    assert compile_line(OWN.replace(compile="blocks"), "here") is None
    assert compile_line(OWN.replace(compile="default"), "here") == "model = torch.compile(model), here"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"checkpointed_blocks": 0}, "switch the model's activation checkpointing off"),
        ({"checkpointed_blocks": 2}, "for the first 2 blocks"),
        ({"checkpointed_blocks": 2, "checkpoint_order": "2-3,0-1"}, "for blocks 2-3"),
        ({"checkpointed_blocks": 4}, "model.gradient_checkpointing_enable("),
    ],
)
def test_the_line_of_checkpointing_names_the_blocks_or_the_switch_of_all(
    values: dict[str, KnobValue], words: str
) -> None:
    found = of_blocks(4, **values)
    lines = code_lines(found.plan, found)
    assert words in lines["checkpointed_blocks"]
    assert ("gradient_checkpointing_enable" in lines["checkpointed_blocks"]) is (values == {"checkpointed_blocks": 4})


def test_no_text_of_a_foreign_plan_is_in_a_line() -> None:
    plan = OWN.replace(micro_batch_size=EVIL, precision=EVIL, memory_format=EVIL, optimizer_implementation="fused")
    plan = plan.replace(checkpointed_blocks=2, checkpoint_order=EVIL)
    assert code_lines(plan, answer(plan, settings={"optimizer": EVIL})) == {
        "optimizer_implementation": "torch.optim.AdamW(..., foreach=False, fused=True)"
    }
