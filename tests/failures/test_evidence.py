"""The chain walk, the texts that are collected, and what scrubbing lets go of."""

import concurrent.futures
import logging
import logging.handlers
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from autofit.core.outcome import Status
from autofit.failures.classify import classify
from autofit.failures.evidence import ErrorLink, Evidence, collect, scrub
from tests.failures.raising import OOM_TEXT, oom, raised

# --- the chain ----------------------------------------------------------------------------------------


def from_cause() -> None:
    try:
        oom()
    except RuntimeError as error:
        raise ValueError("the step failed") from error


def from_context() -> None:
    try:
        oom()
    except RuntimeError:
        int("x")


def from_group() -> None:
    raise BaseExceptionGroup("several", [ValueError("a"), BaseExceptionGroup("inner", [raised(from_cause)])])


def from_compiler() -> None:
    def backend(graph: Any, inputs: Any) -> Any:
        oom()

    torch.compile(lambda x: x.sin(), backend=backend)(torch.zeros(3))


def from_attribute() -> None:
    error = RuntimeError("backend raised")
    error.inner_exception = raised(oom)  # type: ignore[attr-defined]  # as dynamo's BackendCompilerFailed has it
    raise error


@pytest.mark.parametrize("wrapped", [from_cause, from_context, from_group, from_compiler, from_attribute])
@pytest.mark.fault("F07")
def test_a_wrapped_out_of_memory_is_found(wrapped: Callable[[], None]) -> None:
    found = collect(raised(wrapped))
    assert found.chain[0].type_name != "torch.OutOfMemoryError"
    assert classify(found).status is Status.OUT_OF_MEMORY
    assert classify(found).reason.startswith("torch.OutOfMemoryError: CUDA out of memory.")


def test_a_suppressed_context_does_not_count() -> None:
    def hide() -> None:
        try:
            oom()
        except RuntimeError:
            raise ValueError("too many classes") from None

    assert len(collect(raised(hide)).chain) == 1
    assert classify(collect(raised(hide))).status is Status.USER_ERROR


def test_what_a_caller_is_handling_is_another_failure_and_is_left_alone() -> None:
    def probe() -> BaseException:  # as tune() called from an except block
        error = raised(lambda: int("x"))
        assert error.__context__ is outer
        assert classify(collect(error)).status is Status.USER_ERROR
        scrub(error)
        return error

    try:
        oom()
    except RuntimeError as outer_error:
        outer = outer_error
        inner = probe()
        assert outer.__traceback__ is not None
        assert inner.__context__ is None


def test_cycles_and_long_chains_end() -> None:
    a, b = RuntimeError("a"), RuntimeError(OOM_TEXT)
    a.__cause__, b.__context__ = b, a
    b.inner_exception = a  # type: ignore[attr-defined]  # a third way back
    assert [each.text for each in collect(a).chain] == ["a", OOM_TEXT]
    scrub(a)
    top = error = RuntimeError("0")
    for number in range(3000):
        error.__cause__ = RuntimeError(str(number))
        error = error.__cause__
    assert len(collect(top).chain) == 64
    scrub(top)
    assert top.__cause__ is None


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from(["cause", "context", "inner"]), st.integers(0, 5))))
def test_any_graph_of_exceptions_is_collected_and_scrubbed(edges: list[tuple[int, str, int]]) -> None:
    nodes = [RuntimeError(str(number)) for number in range(6)]
    names = {"cause": "__cause__", "context": "__context__", "inner": "inner_exception"}
    for start, kind, end in edges:
        setattr(nodes[start], names[kind], nodes[end])
    texts = [each.text for each in collect(nodes[0]).chain]
    assert texts[0] == "0"
    assert len(texts) == len(set(texts))
    scrub(nodes[0])
    assert nodes[0].__cause__ is nodes[0].__context__ is None


def test_the_code_is_read_from_accelerator_errors_only() -> None:
    error: Any = torch.AcceleratorError("CUDA error: something")
    assert collect(error).chain[0].code is None
    error.error_code = 700
    assert classify(collect(error)).status is Status.POISONED
    other = RuntimeError("the server answered")
    other.error_code = 700  # type: ignore[attr-defined]  # a user's own attribute of the same name
    assert collect(other).chain[0].code is None


# --- texts --------------------------------------------------------------------------------------------


class Unprintable(Exception):
    def __init__(self, broken: BaseException | object) -> None:
        self.broken = broken

    def __str__(self) -> str:
        if isinstance(self.broken, BaseException):
            raise self.broken
        return self.broken  # type: ignore[return-value]  # a __str__ that breaks its promise

    @property
    def inner_exception(self) -> BaseException:
        raise LookupError("not here")


@pytest.mark.parametrize("broken", [ValueError("x"), SystemExit(3), RecursionError(), 7])
def test_an_exception_that_cannot_be_printed(broken: object) -> None:
    found = collect(Unprintable(broken))
    assert "its __str__ raised" in found.chain[0].text
    verdict = classify(found)
    assert verdict.status is Status.USER_ERROR
    assert "Unprintable" in verdict.reason


def test_texts_are_plain_and_short_and_keep_their_end() -> None:
    text = "\x1b[31mred\x1b[0m \x1b]0;title\x07\x9b1mbold\x00\x07 \u202eflip \ud800 line\u2028two\r\nthree\ttab"
    [plain] = collect(RuntimeError(text)).chain
    assert plain.text.split() == ["red", "bold", "flip", "line", "two", "three", "tab"]
    verdict = classify(Evidence((ErrorLink("\x1b[31mEvil\n", ("\x1b[31mEvil\n", "Exception"), text, None),)))
    assert verdict.reason.isprintable()
    long = RuntimeError("x" * 10**6 + " CUDA error: out of memory")
    assert len(collect(long).chain[0].text) == 4000
    assert classify(collect(long)).status is Status.OUT_OF_MEMORY
    assert len(classify(collect(long)).reason) < 300


def test_collected_evidence_is_exact_strings() -> None:
    class Sticky(str):
        __slots__ = ("tensor",)

    class Error(Exception):
        def __str__(self) -> str:
            text = Sticky("hello")
            text.tensor = torch.zeros(1)  # type: ignore[attr-defined]  # a string that holds a tensor
            return text

    assert type(collect(Error()).chain[0].text) is str


def test_the_traceback_shows_the_users_frames_and_the_reason_where() -> None:
    model = nn.Sequential(nn.Linear(2, 2), Broken())
    found = collect(raised(lambda: model(torch.zeros(1, 2))), phase="forward")
    assert "in forward" in found.traceback_text
    assert "_call_impl" not in found.traceback_text
    assert found.traceback_text.rstrip().endswith("ValueError: labels are missing")
    verdict = classify(found)
    assert verdict.reason.startswith("ValueError: labels are missing (test_evidence.py:")
    assert verdict.reason.endswith(" in forward)")


class Broken(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("labels are missing")


# --- scrub --------------------------------------------------------------------------------------------


class Tracked:
    """Tensors of a failing trial, through weak references: gone means gone without a garbage collection."""

    def __init__(self) -> None:
        self.references: list[weakref.ref[torch.Tensor]] = []

    def keep(self, tensor: torch.Tensor) -> torch.Tensor:
        self.references.append(weakref.ref(tensor))
        return tensor

    @property
    def alive(self) -> int:
        return sum(reference() is not None for reference in self.references)


class Block(nn.Module):
    def __init__(self, tracked: Tracked, fail: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.tracked, self.fail = tracked, fail

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.tracked.keep(self.linear(x))
        if self.fail:
            oom()
        return self.tracked.keep(torch.relu(hidden))


def trial(tracked: Tracked, where: str) -> None:
    model = nn.Sequential(Block(tracked, fail=False), Block(tracked, fail=where == "forward"))
    if where == "backward":
        model.get_parameter("0.linear.weight").register_hook(lambda gradient: oom())  # type: ignore[no-untyped-call]  # torch has no types here
    x = tracked.keep(torch.randn(3, 4))
    loss = tracked.keep(model(x).sum())
    loss.backward()  # type: ignore[no-untyped-call]  # torch has no types here


Held = tuple[BaseException, object]  # the error to scrub, and what the habit keeps


def keep_error(run: Callable[[], None]) -> Held:
    error = raised(run)
    return error, error


def keep_cause(run: Callable[[], None]) -> Held:
    try:
        try:
            run()
        except RuntimeError as error:
            raise RuntimeError("the trial failed") from error
    except RuntimeError as outer:
        return outer, outer.with_traceback(None)
    raise AssertionError("expected that the run fails")


def keep_context(run: Callable[[], None]) -> Held:
    try:
        try:
            run()
        except RuntimeError:
            int("x")
    except ValueError as outer:
        return outer, outer.with_traceback(None)
    raise AssertionError("expected that the run fails")


def keep_suppressed_context(run: Callable[[], None]) -> Held:
    try:
        try:
            run()
        except RuntimeError:
            raise ValueError("hidden") from None
    except ValueError as outer:
        return outer, outer
    raise AssertionError("expected that the run fails")


def keep_group(run: Callable[[], None]) -> Held:
    group = BaseExceptionGroup("ranks", [ValueError("a"), BaseExceptionGroup("inner", [raised(run)])])
    return group, group


def keep_inner(run: Callable[[], None]) -> Held:
    error = RuntimeError("backend raised")
    error.inner_exception = raised(run)  # type: ignore[attr-defined]  # as dynamo's BackendCompilerFailed has it
    return error, error


def keep_future(run: Callable[[], None]) -> Held:
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        future = executor.submit(run)
    error = future.exception()
    assert error is not None
    return error, future


def keep_log_record(run: Callable[[], None]) -> Held:
    handler = logging.handlers.MemoryHandler(1000)
    logger = logging.Logger("test")
    logger.addHandler(handler)
    try:
        run()
    except RuntimeError as error:
        logger.exception("out of memory")
        return error, handler
    raise AssertionError


def keep_exc_info(run: Callable[[], None]) -> Held:
    try:
        run()
    except RuntimeError as error:
        return error, sys.exc_info()
    raise AssertionError


def keep_last_exception(run: Callable[[], None]) -> Held:
    error = raised(run)
    sys.last_value, sys.last_traceback = error, error.__traceback__  # as a REPL or a notebook does
    return error, None


def keep_cycle(run: Callable[[], None]) -> Held:
    try:
        run()
    except RuntimeError as error:
        itself = error  # the frame refers to its own exception
        return itself, itself
    raise AssertionError


def keep_payload(run: Callable[[], None]) -> Held:
    error = raised(run)
    frames = error.__traceback__
    assert frames is not None
    assert frames.tb_next is not None
    tensor = torch.zeros(1)
    carrier = ValueError("bad batch", {"x": [tensor]})
    carrier.batch, carrier.hint, carrier.frame = tensor, "look", frames.tb_next.tb_frame  # type: ignore[attr-defined]
    carrier.__cause__ = error
    return carrier, carrier


@pytest.fixture
def _last_exception() -> Iterator[None]:
    names = ("last_value", "last_traceback", "last_type", "last_exc")
    saved = {name: getattr(sys, name) for name in names if hasattr(sys, name)}
    yield
    for name in names:
        if name in saved:
            setattr(sys, name, saved[name])
        elif hasattr(sys, name):
            delattr(sys, name)


HABITS = [keep_error, keep_cause, keep_context, keep_suppressed_context, keep_group, keep_inner, keep_future]
HABITS += [keep_log_record, keep_exc_info, keep_last_exception, keep_cycle, keep_payload]


@pytest.mark.usefixtures("_last_exception")
@pytest.mark.parametrize("where", ["forward", "backward"])
@pytest.mark.parametrize("habit", HABITS)
@pytest.mark.fault("F13")
def test_scrub_releases_every_tensor_of_the_failed_trial(habit: Callable[..., Held], where: str) -> None:
    tracked = Tracked()
    error, held = habit(lambda: trial(tracked, where))
    assert tracked.alive >= 2, "the habit holds nothing, so the test would prove nothing"
    scrub(error)
    assert tracked.alive == 0
    del held


def test_scrub_reaches_a_suppressed_error_that_someone_else_kept() -> None:
    tracked, kept = Tracked(), []

    def fail() -> None:
        try:
            trial(tracked, "forward")
        except RuntimeError as error:
            kept.append(error)
            raise ValueError("hidden") from None

    error = raised(fail)
    assert tracked.alive >= 2
    scrub(error)
    assert tracked.alive == 0
    assert kept[0].__traceback__ is None


def test_scrub_inside_the_handler_releases_all_but_the_running_frame() -> None:
    tracked = Tracked()
    mine = tracked.keep(torch.zeros(1))
    try:
        trial(tracked, "forward")
    except RuntimeError as error:
        scrub(error)
        assert tracked.alive == 1
    assert mine.numel() == 1


@pytest.mark.fault("F13")
def test_scrub_takes_tensors_out_of_the_exception_and_leaves_its_message() -> None:
    tracked = Tracked()

    def fail() -> None:
        error = ValueError("bad batch", tracked.keep(torch.zeros(1)))
        error.batch = {"x": [tracked.keep(torch.zeros(1))]}  # type: ignore[attr-defined]  # a user's attribute
        error.hint = "look at the labels"  # type: ignore[attr-defined]  # a user's attribute
        error.add_note("a note")
        raise error

    error = raised(fail)
    assert tracked.alive == 2
    scrub(error)
    assert tracked.alive == 0
    assert "bad batch" in str(error)
    assert (vars(error)["hint"], error.__notes__) == ("look at the labels", ["a note"])


def test_scrub_lets_go_of_the_object_that_lacked_an_attribute() -> None:
    tracked = Tracked()
    error = raised(lambda: tracked.keep(torch.zeros(1)).labels)  # type: ignore[attr-defined]  # the user's typo
    assert tracked.alive == 1
    scrub(error)
    assert tracked.alive == 0
    assert "labels" in str(error)


def test_scrub_handles_errors_that_forbid_assignment_and_compiler_errors() -> None:
    @dataclass(frozen=True)
    class Frozen(Exception):
        size: int

    def fail() -> None:
        raise Frozen(3)

    error = raised(fail)
    scrub(error)
    assert error.__traceback__ is None
    compiled = raised(from_compiler)
    scrub(compiled)
    assert OOM_TEXT in str(compiled)
    assert vars(compiled).get("first_useful_frame") is None


@pytest.mark.fault("F13")
def test_evidence_survives_the_scrub_and_holds_nothing() -> None:
    tracked = Tracked()
    error = raised(lambda: trial(tracked, "forward"))
    found = collect(error, phase="forward", new_ooms=1)
    scrub(error)
    assert tracked.alive == 0
    assert (found.phase, found.new_ooms) == ("forward", 1)
    assert "in forward" in found.traceback_text
    assert classify(found).status is Status.OUT_OF_MEMORY
    scrub(error)  # a second time changes nothing
    assert str(error) == OOM_TEXT
