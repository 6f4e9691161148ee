"""Trainers of Hugging Face on two real ranks: tuned inside their launch, and trained under the plan on all ranks."""

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.utils.data import DataLoader

from autofit.core.environment import LAUNCHED
from autofit.workloads.step import Ranks
from scripts.bench.ranks.launching import launched
from tests.ranks.test_search import GIVEN, data, net, sgd

pytest.importorskip("transformers")
pytest.importorskip("accelerate")
pytestmark = [pytest.mark.slow, pytest.mark.leaves("multiprocessing keeps a tracker of its resources")]
TECHNIQUES = ["batching", "checkpointing"]
"""As a user of one process names them: without the layout."""


def as_torchrun(ranks: Ranks) -> None:
    """Sets the variables that tell Accelerate its ranks. The process group exists already, as in such a script."""
    values = (str(ranks.number), str(ranks.count), "localhost", "29500")
    os.environ.update(zip(LAUNCHED, values, strict=True))
    os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"] = values[:2]


def weights(model: nn.Module) -> list[float]:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()]).tolist()


def of_trainer(ranks: Ranks, folder: str) -> dict[str, Any]:
    as_torchrun(ranks)
    from autofit.integrations.huggingface import PlanCheck, apply, tune_trainer  # noqa: PLC0415  # once ranks are known
    from tests.integrations.huggingface.training import arguments, trainer  # noqa: PLC0415

    args = arguments(Path(folder), per_device_train_batch_size=2, gradient_accumulation_steps=4)
    pinned = {"micro_batch_size": 4, "checkpointed_blocks": 2}
    given = {**GIVEN, "strategies": TECHNIQUES, "pinned": pinned}
    del given["loss_fn"]
    fit = tune_trainer(lambda: trainer(args), **given)
    model = trainer(args).model
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        changed = apply(fit, args, model)
    made, sizes, blocks = trainer(changed, [PlanCheck(fit)], model=model), list[int](), list[int]()
    model.lm_head.register_forward_hook(lambda module, inputs, output: sizes.append(len(output)))
    for number, layer in enumerate(model.transformer.h):
        layer.mlp.register_forward_pre_hook(lambda module, inputs, number=number: blocks.append(number))
    made.train()
    return {
        "plan": str(fit.plan),
        "layout": fit.plan.values["layout"],
        "refused": [f"{each.name}: {each.reason}" for each in fit.answer.refused],
        "said": [str(each.message) for each in said if "field" in str(each.message)],
        "caveats": list(fit.caveats),
        "sizes": sizes,
        "blocks": [blocks.count(number) for number in range(4)],
        "kind": type(made.model_wrapped).__name__,
        "weights": weights(model),
    }


def test_a_trainer_is_tuned_and_trained_alike_on_all_ranks(tmp_path: Path) -> None:
    first, second = launched(of_trainer, str(tmp_path))
    assert first == second, "the weights too: each rank has other samples, and the same gradients"
    assert first["layout"] == "replicated"
    assert "layout: pinned to replicated" in first["refused"]
    assert any("the 16 samples of an optimizer step are those of the arguments" in each for each in first["caveats"])
    assert first["said"] == [], "the Trainer applies all of the plan"
    assert first["sizes"] == [4] * 4, "two steps of two micro batches"
    assert first["blocks"] == [8, 8, 4, 4]
    assert first["kind"] == "DistributedDataParallel"


def of_accelerate(ranks: Ranks) -> dict[str, Any]:
    as_torchrun(ranks)
    from accelerate import Accelerator  # noqa: PLC0415
    from accelerate.state import AcceleratorState, PartialState  # noqa: PLC0415

    import autofit  # noqa: PLC0415
    from autofit.integrations.accelerate import accelerator_arguments, loader_arguments  # noqa: PLC0415

    before = vars(PartialState(cpu=True)).copy()
    model, loader = net(), data()
    fit = autofit.tune(model, loader, optimizer=sgd, global_batch_size=32, **{**GIVEN, "strategies": ["batching"]})
    assert vars(PartialState()) == before
    AcceleratorState._reset_state(reset_partial_state=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        arguments = accelerator_arguments(fit)
    accelerator = Accelerator(**arguments)
    rows = DataLoader(loader.dataset, shuffle=True, **loader_arguments(fit))
    trained, optimizer, batches = accelerator.prepare(model, sgd(model.parameters()), rows)
    sizes, updates = [], 0
    for inputs, targets in batches:
        with accelerator.accumulate(trained):
            accelerator.backward(nn.functional.cross_entropy(trained(inputs), targets))
            optimizer.step()
            optimizer.zero_grad()
            updates += accelerator.sync_gradients
        sizes.append(len(inputs))
    return {
        "plan": [fit.plan.micro_batch_size, fit.plan.accumulation_steps, fit.plan.values["layout"]],
        "steps": arguments["gradient_accumulation_steps"],
        "sizes": sizes,
        "updates": updates,
        "weights": weights(model),
    }


def test_a_script_of_accelerate_tunes_before_its_accelerator() -> None:
    first, second = launched(of_accelerate)
    assert first == second
    size, steps, layout = first["plan"]
    assert (size * steps, layout) == (16, "replicated")
    assert first["steps"] == steps
    assert first["sizes"] == [size] * (128 // size), "each rank has half of the samples"
    assert first["updates"] == 8


def refused(ranks: Ranks, folder: str) -> list[str]:
    """Returns why a Trainer whose ranks split each batch, and a plan of another number of ranks, are refused."""
    as_torchrun(ranks)
    import autofit  # noqa: PLC0415
    from autofit.integrations.huggingface import apply, tune_trainer  # noqa: PLC0415
    from tests.conformance.test_exporters import OWN, answer  # noqa: PLC0415
    from tests.integrations.huggingface.training import arguments, trainer  # noqa: PLC0415

    args, found = arguments(Path(folder), accelerator_config={"split_batches": True}), []
    other = answer(OWN.replace(layout="replicated"), settings={"ranks": "4"})
    for run in (lambda: tune_trainer(lambda: trainer(args)), lambda: apply(other, args)):
        with pytest.raises(autofit.UsageError) as error:
            run()
        found.append(str(error.value))
    distributed.barrier()
    return found


def test_what_would_train_with_another_batch_is_refused(tmp_path: Path) -> None:
    for splits, ranks in launched(refused, str(tmp_path)):
        assert splits.startswith("found split_batches=True in the arguments; expected a training without it")
        assert ranks.startswith("found world_size=2, and the plan has 4 ranks")
