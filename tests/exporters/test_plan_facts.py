"""What exporters ask of a plan; the lines of plain PyTorch are code that does what the plan says."""

import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from autofit.core.loading import Loading, LoadingTrial
from autofit.core.plan import KnobValue
from autofit.exporters.plan_facts import (
    Settings,
    checkpointing_fields,
    checkpoints_every_block,
    code_lines,
    compile_line,
    loader_line,
    max_grad_norm,
    worker_settings,
)
from tests.conformance.test_exporters import EVIL, OWN, answer, of_blocks


@pytest.mark.parametrize(("blocks", "every"), [(4, True), (3, False), (0, False), ("default", False), (True, False)])
def test_the_record_of_the_strategy_says_how_many_blocks_there_are(blocks: KnobValue, every: bool) -> None:
    found = of_blocks(4, checkpointed_blocks=blocks)
    assert checkpoints_every_block(found) is every


def test_a_loader_that_is_kept_or_has_no_workers_is_not_a_choice() -> None:
    found = answer(OWN)
    assert worker_settings(found) == {}
    trials = (LoadingTrial(workers=2),)
    chosen = Loading(needed_per_s=10.0, trials=trials, workers=2, prefetch_factor=4, pin_memory=True)
    settings = {"num_workers": 2, "prefetch_factor": 4, "persistent_workers": False, "pin_memory": True}
    kept, none = (chosen.model_copy(update=fields) for fields in ({"kept": "it keeps up"}, {"workers": 0}))
    for loading, expected in ((chosen, settings), (kept, {}), (none, {})):
        proof = found.proof.model_copy(update={"loading": loading})
        assert worker_settings(found.model_copy(update={"proof": proof})) == expected


@pytest.mark.parametrize(
    ("text", "norm"),
    [("0.5", 0.5), ("", None), ("none", None), ("0", None), ("-1", None), ("inf", None), ("nan", None)],
)
def test_the_norm_of_clipping_is_a_positive_number(text: str, norm: float | None) -> None:
    assert max_grad_norm(answer(OWN, settings={"max_grad_norm": text})) == norm
    assert max_grad_norm(answer(OWN)) is None
    assert max_grad_norm(answer(OWN, settings={"max_grad_norm": text, "mode": "inference"})) is None


def test_the_settings_of_checkpointing_are_those_of_no_block_or_of_every_block() -> None:
    def fields(**values: KnobValue) -> dict[str, Settings]:
        return checkpointing_fields(of_blocks(3, **values), {"on": False}, {"on": True})

    assert fields(checkpointed_blocks=0) == {"checkpointed_blocks": {"on": False}}
    assert fields(checkpointed_blocks=3)["checkpointed_blocks"] == {"on": True}
    assert fields(checkpointed_blocks="default")["checkpointed_blocks"] == {}
    assert fields(checkpointed_blocks=2) == {}


def test_the_loader_line_makes_a_loader_of_the_plan() -> None:
    plan = OWN.replace(micro_batch_size=4)
    line = loader_line(answer(plan))
    assert line is not None
    loader = eval(line, {"DataLoader": DataLoader, "dataset": TensorDataset(torch.zeros(8, 1))})
    assert [len(batch[0]) for batch in loader] == [4, 4]


@pytest.mark.parametrize(
    ("value", "flags"), [("for-loop", (False, False)), ("foreach", (True, False)), ("fused", (False, True))]
)
def test_the_optimizer_line_chooses_the_implementation(value: str, flags: tuple[bool, bool]) -> None:
    plan = OWN.replace(optimizer_implementation=value)
    line = code_lines(answer(plan, settings={"optimizer": "SGD"}))["optimizer_implementation"]
    parameters = nn.Linear(2, 2).parameters()
    optimizer = eval(line.replace("...", "parameters"), {"torch": torch, "parameters": parameters})
    assert type(optimizer) is torch.optim.SGD
    assert (optimizer.defaults["foreach"], optimizer.defaults["fused"]) == flags


def test_tf32_is_switched_on_by_one_line_that_both_interfaces_of_torch_can_read() -> None:
    plan = OWN.replace(precision="tf32")
    line = code_lines(answer(plan))["precision"]
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
    assert code_lines(answer(plan)).keys() == {"micro_batch_size"}
    assert compile_line(answer(OWN.replace(compile="blocks")), "here") is None
    assert compile_line(answer(OWN.replace(compile="default")), "here") == "model = torch.compile(model), here"


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"checkpointed_blocks": 0}, "switch the model's activation checkpointing off"),
        ({"checkpointed_blocks": 2}, "for the first 2 blocks"),
        ({"checkpointed_blocks": 4}, "model.gradient_checkpointing_enable("),
    ],
)
def test_the_line_of_checkpointing_names_the_blocks_or_the_switch_of_all(
    values: dict[str, KnobValue], words: str
) -> None:
    found = of_blocks(4, **values)
    lines = code_lines(found)
    assert words in lines["checkpointed_blocks"]
    assert ("gradient_checkpointing_enable" in lines["checkpointed_blocks"]) is (values == {"checkpointed_blocks": 4})


def test_no_text_of_a_foreign_plan_is_in_a_line() -> None:
    plan = OWN.replace(micro_batch_size=EVIL, precision=EVIL, memory_format=EVIL, optimizer_implementation="fused")
    plan = plan.replace(checkpointed_blocks=EVIL)
    assert code_lines(answer(plan, settings={"optimizer": EVIL})) == {
        "optimizer_implementation": "torch.optim.AdamW(..., foreach=False, fused=True)"
    }
