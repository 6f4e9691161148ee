"""A plan of a trainer says so; a global batch that an integration kept is said, with what frees it."""

from pathlib import Path

import pytest

import autofit
from autofit.core.plan import Plan
from autofit.fit import Fit
from autofit.integrations.trainer_fit import for_trainer, with_kept_batch
from tests.conformance.test_exporters import OWN, answer


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
