"""The trainers of other libraries, tuned where they start to train."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from transformers import Trainer

from autofit.core.errors import UsageError
from autofit.core.plan import Plan
from autofit.fit import Fit
from autofit.integrations import huggingface, lightning, observed_trainers
from autofit.integrations.observed_trainers import OnTuned, TunedTrainers
from tests.conformance.test_exporters import answer
from tests.integrations.huggingface.training import arguments, trainer
from tests.integrations.lightning_modules import FILTERS, Net, loader
from tests.integrations.lightning_modules import trainer as lightning_trainer

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings(*FILTERS)]

PLAN = Plan(values={"micro_batch_size": 4, "accumulation_steps": 2})


class Answers:
    """Answers once, as a command does, and keeps what came of it."""

    def __init__(self) -> None:
        self.begun, self.outcomes = 0, list[object]()

    def begin(self) -> OnTuned | None:
        self.begun += 1
        return self if self.begun == 1 else None

    def __call__(self, find: Callable[[], Fit], apply: Callable[[Fit], None]) -> None:
        try:
            fit = find()
            apply(fit)
        except UsageError as error:
            self.outcomes.append(str(error))
        else:
            self.outcomes.append(fit.plan)


@contextmanager
def answered(**arguments: Any) -> Iterator[Answers]:
    answers = Answers()
    with TunedTrainers(answers.begin, arguments):
        yield answers


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A search that answers at once; what it was asked."""
    asked = dict[str, Any]()

    def tune(*given: Any, **named: Any) -> Fit:
        asked.update(named)
        return Fit(answer(PLAN.replace(**asked.get("pinned", {}))))

    monkeypatch.setattr(huggingface, "tune_trainer", lambda make_trainer, **named: tune(make_trainer(), **named))
    monkeypatch.setattr(lightning, "tune", tune)
    return asked


def test_a_trainer_of_transformers_trains_under_the_plan(asked: dict[str, Any], tmp_path: Path) -> None:
    made = trainer(arguments(tmp_path, per_device_train_batch_size=8))
    with answered(time_budget="5s", pinned={"precision": "bf16"}) as answers:
        made.train()
        made.train()
    assert answers.outcomes == [PLAN.replace(precision="bf16")]
    assert (asked["time_budget"], asked["without"]) == ("5s", ())
    assert made.get_train_dataloader().total_batch_size == 4
    assert made.args.gradient_accumulation_steps == 2
    assert made.accelerator.mixed_precision == "bf16"
    assert made.state.global_step == 2


def test_a_trainer_with_a_loader_of_its_kind_trains_as_before(asked: dict[str, Any], tmp_path: Path) -> None:
    class Fixed(Trainer):  # type: ignore[misc]  # not typed
        def get_train_dataloader(self) -> Any:
            return super().get_train_dataloader()

    made = trainer(arguments(tmp_path, per_device_train_batch_size=8), kind=Fixed)
    with answered() as answers:
        made.train()
    (text,) = answers.outcomes
    assert "found Fixed.get_train_dataloader, whose batch may not be that of the arguments" in str(text)
    assert (made.args.per_device_train_batch_size, made.args.gradient_accumulation_steps) == (8, 1)
    assert made.state.global_step == 2


def test_a_trainer_of_lightning_trains_under_the_plan(asked: dict[str, Any]) -> None:
    net = Net()
    with answered(memory_budget="1GiB") as answers:
        lightning_trainer().fit(net, loader(8))
    assert answers.outcomes == [PLAN]
    assert asked["memory_budget"] == "1GiB"
    assert (net.rows, net.updates) == ([4, 4, 4, 4], [2, 4])


def test_a_training_of_lightning_that_cannot_be_tuned_trains_as_before(asked: dict[str, Any]) -> None:
    class Fixed(Net):
        def train_dataloader(self) -> Any:
            return loader(8)

    net = Fixed()
    with answered() as answers:
        lightning_trainer().fit(net)
    (text,) = answers.outcomes
    assert "found no attribute 'batch_size' on the module" in str(text)
    assert (net.rows, asked) == ([8, 8], {})


def test_a_training_of_lightning_with_a_callback_of_autofit_is_left_to_it(asked: dict[str, Any]) -> None:
    net, own = Net(), lightning.AutofitCallback(memory_budget="2GiB")
    with answered(memory_budget="1GiB") as answers:
        lightning_trainer(own).fit(net, loader(8))
    (text,) = answers.outcomes
    assert "found a callback of autofit among those of the Trainer" in str(text)
    assert asked["memory_budget"] == "2GiB"
    assert (net.rows, net.updates) == ([4, 4, 4, 4], [2, 4])


def test_a_module_is_changed_when_it_is_imported_and_restored_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "imported_later.py").write_text(
        "class Trainer:\n    def train(self, steps):\n        return steps\n", encoding="utf-8"
    )
    monkeypatch.syspath_prepend(tmp_path)
    before = list[object]()
    note = {"imported_later": ("train", lambda trainer, answer, arguments: before.append((answer, arguments)))}
    monkeypatch.setattr(observed_trainers, "_TRAINERS", note)
    finders = list(sys.meta_path)
    with answered(seed=3) as answers:
        module: ModuleType = __import__("imported_later")
        assert module.Trainer().train(steps=5) == 5
        assert module.Trainer().train(7) == 7
    assert before == [(answers, {"seed": 3})]
    assert sys.meta_path == finders
    assert module.Trainer().train(9) == 9
    assert len(before) == 1
    del sys.modules["imported_later"]
