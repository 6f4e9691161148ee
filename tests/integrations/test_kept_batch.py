"""A global batch that an integration kept is said, with what frees it."""

from autofit.fit import Fit
from autofit.integrations.kept_batch import with_kept_batch
from tests.conformance.test_exporters import OWN, recommendation


def test_the_caveat_names_the_batch_its_origin_the_argument_and_the_rule() -> None:
    fit = Fit(recommendation(OWN))
    found, size = with_kept_batch(fit, "of your loader", ("study",)), fit.plan.global_batch_size
    assert found.caveats[:-1] == fit.caveats
    said = found.caveats[-1]
    assert said.startswith(f"the {size} samples of an optimizer step are those of your loader, and were kept")
    assert f"max_global_batch_size={4 * size}" in said
    assert "learning rate" in said
    assert (found.plan, found.terms) == (fit.plan, fit.terms)
