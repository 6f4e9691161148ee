"""A search in the caller's own process: what it hands over beside the answer."""

from typing import Any

import pytest
from torch import nn
from torch.utils.data import DataLoader

import autofit
from autofit import in_process
from autofit.search.event import Event
from tests.recorded import recorded_search


def tune(monkeypatch: pytest.MonkeyPatch, events: list[Event], **choices: Any) -> autofit.Fit:
    """Tunes a small model with a search that is over at once, after these events."""
    found = recorded_search().recommendation
    assert found is not None

    def search(bench: object, request: object, listeners: Any, clock: object) -> Any:
        for event in events:
            for listener in listeners:
                listener(event)
        return found

    monkeypatch.setattr(in_process, "search", search)
    data: Any = [(x, x.sum()) for x in nn.init.normal_(nn.Linear(4, 16).weight).detach()]
    arguments: dict[str, Any] = {
        "loss_fn": lambda out, y: (out[:, 0] - y).square().mean(), "device": "cpu", "strategies": (),
        "study": ":memory:", "memory_budget": "64MiB", "progress": False,
    }  # fmt: skip
    return autofit.tune(nn.Linear(4, 2), DataLoader(data, batch_size=4), **(arguments | choices))


def test_the_result_of_the_last_event_goes_with_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    result = recorded_search()
    fit = tune(monkeypatch, [Event("result", "found", result=result), Event("waiting", "late")])
    assert fit.result is not None
    assert fit.result.trials == result.trials
    assert fit.result.recommendation == fit.recommendation


def test_a_search_without_a_last_event_still_has_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tune(monkeypatch, []).result is None


def test_further_listeners_receive_the_events_of_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    tune(monkeypatch, [Event("stage", "searching")], listeners=[lambda event: seen.append(event.text)])
    assert seen == ["searching"]
