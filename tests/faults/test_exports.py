"""D8: exported loops run as they are, in a fresh process, and do what `fit.prepare` does."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from autofit import devices, exporters
from autofit.core.answer import Answer
from autofit.fit import Fit
from autofit.identity import model_signature
from tests.conformance.test_exporters import OWN, answer
from tests.exporters import example_kinds, run_export
from tests.exporters.kinds import KINDS, Kind

SCRIPT = Path(run_export.__file__)
ROOT = Path(__file__).parents[2]
STEP = {"micro_batch_size": 4, "accumulation_steps": 4}
"""Of 22 samples: steps of 4 + 4 + 4 + 4 and 4 + 2."""
EXAMPLES = ("gpt", "convnet", "huggingface", "tabular")
EXAMPLES_CODE = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(ROOT)!r})
from tests.exporters import example_kinds, run_export
run_export.run_all(Path(sys.argv[1]), example_kinds.kinds())
"""


def planned(kind: Kind) -> Answer:
    """Returns what a search would have recommended for a kind on this machine."""
    record = answer(OWN.replace(**{**STEP, **kind.plan}), settings=kind.settings)
    here = {"workload": f"{model_signature(kind.fresh())}-x", "device_name": devices.choose("cpu").name()}
    return record.model_copy(update={"environment": record.environment.model_copy(update=here)})


def exported(folder: Path, kinds: dict[str, Kind], *command: str) -> Path:
    """Writes the loop of each kind, and runs them all in a fresh process."""
    for name, kind in kinds.items():
        (folder / f"{name}.py").write_text(exporters.by_name("python").export(planned(kind)).text)
    subprocess.run([sys.executable, *command, str(folder)], check=True, timeout=240, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the loops of the kinds ran."""
    return exported(tmp_path_factory.mktemp("kinds"), KINDS, str(SCRIPT))


@pytest.fixture(scope="module")
def examples() -> dict[str, Kind]:
    """The examples as kinds."""
    return example_kinds.kinds()


@pytest.fixture(scope="module")
def examples_ran(examples: dict[str, Kind], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the loops of the examples ran."""
    return exported(tmp_path_factory.mktemp("examples"), examples, "-c", EXAMPLES_CODE)


def output(folder: Path, name: str) -> list[torch.Tensor]:
    failure = folder / f"{name}.txt"
    assert not failure.exists(), failure.read_text()
    found: list[torch.Tensor] = torch.load(folder / f"{name}.pt")
    assert found
    return found


def prepared(kind: Kind) -> list[torch.Tensor]:
    """Returns the parameters after as many steps of `fit.prepare`, or what it estimates."""
    model = kind.fresh()
    optimizer: Any = None if kind.settings.get("mode") == "inference" else kind.optimizer(model.parameters())
    step = Fit(planned(kind)).prepare(model, kind.loader(11), optimizer, step_fn=kind.loss)
    (model.eval if optimizer is None else model.train)()
    torch.manual_seed(run_export.SEED)
    if optimizer is None:
        return [step(batch) for batch in step.loader]
    for _ in range(run_export.EPOCHS):
        for batch in step.loader:
            step(batch)
    step.close()
    return [parameter.detach() for parameter in model.parameters()]


def assert_same(mine: list[torch.Tensor], wanted: list[torch.Tensor], tolerance: float = 1e-6) -> None:
    assert len(mine) == len(wanted)
    for one, other in zip(mine, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)


def assert_trained(kind: Kind, after: list[torch.Tensor]) -> None:
    start = [parameter.detach() for parameter in kind.fresh().parameters()]
    assert any((one - own).abs().max() > 1e-4 for one, own in zip(after, start, strict=True))


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in KINDS if name != "graphs of many sizes"])
def test_d8_the_exported_loop_runs_as_it_is_and_trains_as_prepare_does(name: str, ran: Path) -> None:
    kind = KINDS[name]
    after = output(ran, name)
    assert_same(after, prepared(kind))
    if name != "inference":
        assert_trained(kind, after)


@pytest.mark.slow
def test_d8_d2_graphs_of_many_sizes_have_the_gradient_of_the_whole_batch(ran: Path) -> None:
    kind = KINDS["graphs of many sizes"]
    model = kind.fresh()
    optimizer = kind.optimizer(model.parameters())
    for _ in range(run_export.EPOCHS):
        (whole,) = kind.loader(22)
        kind.loss(model, whole).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        optimizer.step()
        optimizer.zero_grad()
    assert_same(output(ran, "graphs of many sizes"), [p.detach() for p in model.parameters()], 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_d8_the_exported_loop_of_an_example_trains_as_prepare_does(
    name: str, examples: dict[str, Kind], examples_ran: Path
) -> None:
    after = output(examples_ran, name)
    assert_same(after, prepared(examples[name]))
    assert_trained(examples[name], after)
