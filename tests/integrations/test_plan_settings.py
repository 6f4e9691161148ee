"""A plan as another library's arguments: where it comes from, and what is left to the user's code."""

import warnings
from pathlib import Path
from typing import Any

import pytest

from autofit.core.errors import PlanFileError, UsageError
from autofit.fit import Fit
from autofit.integrations.plan_settings import PlanSettings, fit_of, import_package
from tests.conformance.test_exporters import OWN, answer


def fit(**values: Any) -> Fit:
    return Fit(answer(OWN.replace(**values)))


def test_settings_and_the_rest_are_all_that_a_plan_changes() -> None:
    found = PlanSettings.of(
        fit(micro_batch_size=4, precision="bf16", memory_format="channels_last", other="on"), "lightning"
    )
    assert found.values == {"precision": "bf16-mixed", "accumulate_grad_batches": 1}
    assert found.left.keys() == {"micro_batch_size", "memory_format", "other"}
    assert found.left["other"] == ""
    with pytest.warns(UserWarning, match=r"memory_format=channels_last \(write: .*\); other=on\. Its measured"):
        found.warn()


def test_the_batch_alone_is_no_reason_to_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        PlanSettings.of(fit(micro_batch_size=4, accumulation_steps=2), "lightning").warn()


def test_a_loss_that_the_trainer_weights_in_another_way_is_said() -> None:
    given = answer(OWN.replace(accumulation_steps=2), settings={"weighing": "batch['labels'] != -100"})
    with pytest.warns(UserWarning, match=r"a mean over batch\['labels'\] != -100, .* Lightning weights .* alike"):
        PlanSettings.of(Fit(given), "lightning").warn()


def test_a_batch_that_the_target_cannot_express_is_refused() -> None:
    with pytest.raises(UsageError, match="another global batch"):
        PlanSettings.of(fit(micro_batch_size="8"), "lightning")


def test_a_missing_package_is_said_with_its_extra() -> None:
    with pytest.raises(UsageError, match=r"nowhere cannot be imported .*pip install '\.\[lightning\]' in a checkout"):
        import_package("nowhere", "lightning")
    assert import_package("json", "lightning").__name__ == "json"


def test_a_file_a_fit_and_an_answer_are_the_same_plan(tmp_path: Path) -> None:
    found = answer(OWN.replace(micro_batch_size=2))
    path = tmp_path / "autofit.yaml"
    given = Fit(found)
    given.save(path)
    assert fit_of(given) is given
    assert fit_of(found).answer is found
    assert fit_of(path).answer == fit_of(str(path)).answer == found


def test_something_else_is_refused(tmp_path: Path) -> None:
    other: Any = {"micro_batch_size": 2}
    with pytest.raises(UsageError, match="found a dict as plan"):
        fit_of(other)
    with pytest.raises(PlanFileError):
        fit_of(tmp_path / "missing.yaml")
