"""The example of a Trainer: its own `main`, with a short search."""

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from tests.examples.loading import EXAMPLES, load

pytestmark = pytest.mark.slow


def test_it_tunes_and_trains_under_the_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example, printed = load("huggingface_trainer"), io.StringIO()
    tune_trainer, make_trainer, made = example.tune_trainer, example.make_trainer, []

    def brief(make: Any, **choices: Any) -> Any:
        return tune_trainer(make, **{**choices, "strategies": ["batching"], "time_budget": 30, "progress": False})

    def kept(*given: Any) -> Any:
        made.append(make_trainer(*given))
        return made[-1]

    monkeypatch.chdir(tmp_path)  # where the study is kept
    monkeypatch.setattr(example, "tune_trainer", brief)
    monkeypatch.setattr(example, "make_trainer", kept)
    with redirect_stdout(printed):
        example.main()
    assert "Proven by 3 whole steps on the worst batch" in printed.getvalue()
    tuned, trained = made
    assert tuned.state.global_step == 0
    assert trained.state.global_step == 20
    args = trained.args
    assert args.per_device_train_batch_size * args.gradient_accumulation_steps == 16


def test_a_user_changes_few_lines() -> None:
    """The lines of the example that are of autofit. The issue allows 12."""
    lines = (EXAMPLES / "huggingface_trainer.py").read_text().partition('"""\n\n')[2].splitlines()
    words = ("autofit.integrations", "tune_trainer", "apply(", "PlanCheck", "print(fit)")
    assert 0 < sum(any(word in line for word in words) for line in lines) <= 12
