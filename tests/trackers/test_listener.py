"""A listener that fails gets one warning and no further events; what is not an Exception passes through."""

import warnings

import pytest

from autofit.search.event import Event
from autofit.trackers.listener import FailSoft, warn_user

EVENT = Event("stage", "searching")


def test_a_listener_that_fails_is_not_called_again_and_is_named_once() -> None:
    seen: list[Event] = []
    said: list[str] = []

    def listen(event: Event) -> None:
        seen.append(event)
        raise ValueError("no such page")

    listener = FailSoft(listen, said.append)
    for _ in range(3):
        listener(EVENT)
    listener.close()
    assert seen == [EVENT]
    assert len(said) == 1
    assert "listen failed and gets no further events: ValueError: no such page" in said[0]


def test_an_interrupt_passes_through() -> None:
    def listen(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        FailSoft(listen, pytest.fail)(EVENT)


def test_a_callable_object_is_named_by_its_class() -> None:
    class Page:
        def __call__(self, event: Event) -> None:
            raise OSError("full")

    said: list[str] = []
    FailSoft(Page(), said.append)(EVENT)
    assert "Page failed" in said[0]


def test_the_user_is_warned() -> None:
    with pytest.warns(RuntimeWarning, match="away"):
        warn_user("the server is away")


def test_where_warnings_are_errors_the_text_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_user("the server is away")
    assert capsys.readouterr().err == "autofit: the server is away\n"
