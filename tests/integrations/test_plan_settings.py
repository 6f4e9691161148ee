"""A plan as another library's arguments, and what is left to the user's code; what a search for a trainer says."""

import warnings
from pathlib import Path
from typing import Any

import pytest

import autofit
from autofit.core.errors import PlanFileError, UsageError
from autofit.core.plan import Plan
from autofit.fit import Fit
from autofit.integrations.plan_settings import fit_of, for_trainer, import_package, warn_of, with_kept_batch
from tests.conformance.test_exporters import OWN, answer


def fit(**values: Any) -> Fit:
    return Fit(answer(OWN.replace(**values)))


def test_knobs_that_no_argument_expresses_are_named_with_the_line_to_write() -> None:
    given = fit(micro_batch_size=4, precision="bf16", memory_format="channels_last", other="on")
    with pytest.warns(UserWarning, match=r"memory_format=channels_last \(write: .*\); other=on\. Its measured"):
        warn_of(given.plan, given.export("lightning"))
    with pytest.warns(UserWarning, match=r"express: other=on\. Its measured"):
        warn_of(given.plan, given.export("lightning"), {"memory_format"})


def test_the_batch_alone_is_no_reason_to_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        given = fit(micro_batch_size=4, accumulation_steps=2)
        warn_of(given.plan, given.export("lightning"))


def test_a_loss_that_the_trainer_weights_in_another_way_is_said() -> None:
    given = answer(OWN.replace(accumulation_steps=2), settings={"weighing": "batch['labels'] != -100"})
    with pytest.warns(UserWarning, match=r"a mean over batch\['labels'\] != -100, .* Lightning weights .* alike"):
        warn_of(given.plan, Fit(given).export("lightning"))


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


def test_the_caveat_names_the_batch_its_origin_the_argument_and_the_rule() -> None:
    fit = Fit(answer(OWN))
    found, size = with_kept_batch(fit, "of your loader", ("study",)), fit.plan.global_batch_size
    assert found.caveats[:-1] == fit.caveats
    said = found.caveats[-1]
    assert said.startswith(f"the {size} samples of an optimizer step are those of your loader, and were kept")
    assert f"max_global_batch_size={4 * size}" in said
    assert "learning rate" in said
    assert (found.plan, found.terms) == (fit.plan, fit.terms)


@pytest.mark.parametrize(
    ("library", "said"), [("transformers", "args = huggingface.apply(fit, args)"), ("lightning", "lightning.ApplyPlan")]
)
def test_the_code_that_is_shown_is_that_of_the_trainer_also_after_loading(
    library: str, said: str, tmp_path: Path
) -> None:
    fit = Fit(answer(Plan(values={**OWN.values, "precision": "bf16"}), OWN))
    found = for_trainer(fit, library)
    assert said in str(found)
    assert "fit.prepare(" not in str(found)
    found.save(tmp_path / "plan.yaml")
    assert said in str(autofit.load(tmp_path / "plan.yaml"))
    environment = found.answer.environment
    assert environment.comparable(fit.answer.environment)
