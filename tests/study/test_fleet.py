"""Which offers are open, and which workers are alive."""

import time
from pathlib import Path

import pytest
import sqlalchemy

from autofit.core.errors import StudyError
from autofit.study import fleet
from autofit.study.fleet import Fleet
from autofit.study.location import Place
from autofit.study.tables import opened
from tests.study.databases import offer_of, place_in, url_in


def test_an_offer_is_open_while_its_tuner_keeps_it(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    with Fleet.opened(place) as tuner, Fleet.opened(place) as other:
        assert other.offers() == []
        with tuner.offering(offer_of("a")) as first, tuner.offering(offer_of("b")) as second:
            assert [(each.number, each.offer) for each in other.offers()] == [
                (first, offer_of("a")), (second, offer_of("b")),
            ]  # fmt: skip
        assert other.offers() == []


def test_workers_belong_to_an_offer(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    with (
        Fleet.opened(place) as tuner,
        Fleet.opened(place) as other,
        tuner.offering(offer_of("a")) as first,
        tuner.offering(offer_of("b")) as second,
    ):
        assert tuner.workers(first) == frozenset()
        with other.working(first) as worker, other.working(second):
            assert tuner.workers(first) == {worker}
            assert len(tuner.workers(second)) == 1
        assert tuner.workers(first) == frozenset()


def test_who_gives_no_heartbeat_is_not_there_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "BEAT_S", 60)
    place = place_in(tmp_path)
    with Fleet.opened(place) as tuner, Fleet.opened(place) as other:
        with tuner.offering(offer_of()) as number, other.working(number) as worker:
            assert tuner.workers(number) == {worker}
            age_heartbeats(url_in(tmp_path), fleet.LOST_S + 1)
            assert tuner.workers(number) == frozenset()
            assert other.offers() == []
        assert other.offers() == []  # to end a member twice is no error


def test_heartbeats_keep_a_member_alive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleet, "BEAT_S", 1)
    place = place_in(tmp_path)
    with Fleet.opened(place) as tuner, tuner.offering(offer_of()) as number:
        age_heartbeats(url_in(tmp_path), fleet.LOST_S - 1)
        time.sleep(2.5)
        assert [each.number for each in tuner.offers()] == [number]
        age_heartbeats(url_in(tmp_path), fleet.LOST_S - 1)
        assert [each.number for each in tuner.offers()] == [number]


def test_options_that_were_not_set_stay_unset(tmp_path: Path) -> None:
    with Fleet.opened(place_in(tmp_path)) as tuner, tuner.offering(offer_of()):
        (found,) = tuner.offers()
    assert found.offer is not None
    assert found.offer.options.model_fields_set == set()


def test_an_offer_of_another_version_is_none(tmp_path: Path) -> None:
    place = place_in(tmp_path)
    with Fleet.opened(place) as tuner, tuner._member({fleet.OFFER: '{"study": "a", "newer": 1}'}) as number:
        assert [(each.number, each.offer) for each in tuner.offers()] == [(number, None)]


def test_the_study_of_a_fleet_is_not_a_search(tmp_path: Path) -> None:
    with Fleet.opened(place_in(tmp_path)) as tuner, tuner.offering(offer_of()):
        pass
    with opened(place_in(tmp_path)) as tables:
        assert [name for _, name in tables.select("select * from studies")] == [fleet.FLEET]


def test_a_file_has_no_fleet(tmp_path: Path) -> None:
    with pytest.raises(StudyError, match="expected the URL of a database that all workers reach"):
        Fleet(Place.of(tmp_path / "study.db"))


def age_heartbeats(url: str, seconds: float) -> None:
    """Makes all heartbeats of a database older."""
    engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.NullPool)
    query = f"update trial_heartbeats set heartbeat = datetime(heartbeat, '-{seconds} seconds')"
    with engine.begin() as connection:
        connection.exec_driver_sql(query)
