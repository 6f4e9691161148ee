"""What an offer keeps on its way through a database."""

import pytest
from pydantic import ValidationError

from autofit.core.briefing import Options
from autofit.study.offer import SearchOffer
from tests.study.databases import offer_of


def test_an_offer_reads_back_as_it_was() -> None:
    offer = offer_of().model_copy(
        update={"arguments": {"depth": 2, "name": "é"}, "overrides": {"mode": None}, "options": Options(seed=3)}
    )
    again = SearchOffer.model_validate_json(offer.model_dump_json(exclude_unset=True))
    assert again == offer
    assert again.options.model_fields_set == {"seed"}


def test_a_field_of_a_newer_version_is_refused() -> None:
    with pytest.raises(ValidationError):
        SearchOffer.model_validate({**offer_of().model_dump(), "newer": 1})
