"""Failures: classifies an exception or a dead process. Never imports torch, so it also runs in a parent process.

The texts are data (`texts.json`). Within one text, a negative entry takes precedence over a positive one.
"""

import json
import re
import signal
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from autofit.core.outcome import LAST_BATCH, Status
from autofit.core.strict import Strict
from autofit.failures.evidence import TEXT_LIMIT, ErrorLink, Evidence, plain

_REASON_LIMIT = 240

# Statuses, most urgent first, for chains whose links have different statuses.
_URGENCY = (
    Status.INTERRUPTED,
    Status.POISONED,
    Status.OUT_OF_MEMORY,
    Status.OUT_OF_HOST_MEMORY,
    Status.SHARED_MEMORY,
    Status.WORKER_LOST,
    Status.TIMED_OUT,
    Status.LAUNCH_LIMIT,
    Status.AMBIGUOUS,
    Status.NOT_COMPILED,
)
_ADVICE = {
    Status.POISONED: "every further call on the device fails; only a new process helps",
    Status.SHARED_MEMORY: "use fewer loader workers or a larger shared memory, not a smaller batch",
    Status.LAUNCH_LIMIT: "a kernel limit of this chip, not a lack of memory",
    Status.AMBIGUOUS: "may or may not be caused by a lack of memory",
    Status.WORKER_LOST: "if it was killed, the host may be short of memory: use fewer loader workers",
}
_TYPES = {
    "KeyboardInterrupt": Status.INTERRUPTED,
    "autofit.probing.watchdog.Overdue": Status.TIMED_OUT,
    "torch.OutOfMemoryError": Status.OUT_OF_MEMORY,
    "torch.cuda.OutOfMemoryError": Status.OUT_OF_MEMORY,
    "cupy.cuda.memory.OutOfMemoryError": Status.OUT_OF_MEMORY,
    "MemoryError": Status.OUT_OF_HOST_MEMORY,
    "triton.runtime.errors.OutOfResources": Status.LAUNCH_LIMIT,
    "triton.runtime.autotuner.OutOfResources": Status.LAUNCH_LIMIT,
    "triton.compiler.errors.OutOfResources": Status.LAUNCH_LIMIT,
    "triton.compiler.errors.CompilationError": Status.NOT_COMPILED,
    "torch._dynamo.exc.TorchDynamoException": Status.NOT_COMPILED,
    "torch._dynamo.exc.FailOnRecompileLimitHit": Status.NOT_COMPILED,
    "torch._inductor.exc.OperatorIssue": Status.NOT_COMPILED,
    "torch._inductor.exc.SubgraphLoweringException": Status.NOT_COMPILED,
    "torch._inductor.exc.InvalidCxxCompiler": Status.NOT_COMPILED,
    "torch._inductor.exc.CppCompileError": Status.NOT_COMPILED,
}
_NOTES = {
    "prepare": "while preparing: ",
    LAST_BATCH: "on the incomplete last batch of an epoch, which drop_last=True leaves out: ",
}
# cudaError_t and hipError_t. Sticky: "To continue using CUDA, the process must be terminated and relaunched",
# uncorrectable hardware errors, and a destroyed context.
_STICKY_CODES = frozenset((214, 220, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 721))
_CODES = {2: Status.OUT_OF_MEMORY, 701: Status.LAUNCH_LIMIT, **dict.fromkeys(_STICKY_CODES, Status.POISONED)}

# Only these types carry the text of a back end. A ValueError about "out of memory slots" is the user's.
_TEXT_TYPES = frozenset(("RuntimeError", "OSError"))
_TEXT_PACKAGES = frozenset(("torch", "triton", "cupy", "numba"))
_MUTE_TYPES = frozenset(
    ("ValueError", "TypeError", "LookupError", "AssertionError", "AttributeError", "NameError", "ImportError",
     "NotImplementedError", "RecursionError", "SyntaxError", "Warning")
)  # fmt: skip

_LOADER_WORKER = re.compile(r"Caught \w+ in (?:DataLoader worker process|pin memory thread)")
_OUR_ERRORS = ("autofit.core.errors.", "autofit.probing.watchdog.")
_HINT = "Set TORCHDYNAMO_VERBOSE=1"
"""Beginning of the hints for developers of torch that end the message of an error of torch.compile."""
_LOCATION = re.compile(r'File "([^"\n]+)", line (\d+), in (\S+)')


@dataclass(frozen=True, slots=True)
class Failure:
    """The status of a failure, and a one-line reason for the user."""

    status: Status
    reason: str


class FailureText(Strict):
    """One entry of the text corpus.

    Attributes:
        name: common name of the failure.
        pattern: regular expression that is searched in the exception's text.
        status: status that the text indicates. `USER_ERROR` in a negative entry means "no special failure".
        origin: the library that emits the text.
        seen_in: the version, source file or issue where the text was seen.
        confirmed: whether source code, an issue or our own run confirms the entry.
    """

    name: str
    pattern: re.Pattern[str]
    status: Status
    origin: str
    seen_in: str
    confirmed: bool


@cache
def failure_texts() -> tuple[FailureText, ...]:
    """Returns the text corpus in search order: negative entries, then positive ones."""
    corpus = json.loads(files("autofit.failures").joinpath("texts.json").read_text(encoding="utf-8"))
    return tuple(FailureText.model_validate(entry) for entry in (*corpus["negative"], *corpus["positive"]))


def classify(evidence: Evidence, device_is_host: bool = False) -> Failure:
    """Classifies a failure by type, then by the allocator's counters, then by text.

    `evidence` is from `collect`, or made by a parent for a child that died. On the CPU, running out of host memory is
    an out-of-memory of the device. oneDNN's "could not create a primitive" is ambiguous even there: it was seen both
    under a memory limit and with free memory, and its code cache alone can reach the limit in a process that has run
    other batch sizes. A retry in a fresh process decides.
    """
    if not evidence.chain:
        return _classify_exit(evidence)
    status, link, note = _decide(evidence, device_is_host)
    if status is Status.OUT_OF_HOST_MEMORY and device_is_host:
        status = Status.OUT_OF_MEMORY
    advice = _last_location(evidence.traceback_text) if status.of_users_code else _ADVICE.get(status)
    reason = plain(f"{note}{_headline(link)}", _REASON_LIMIT)
    return Failure(status, f"{reason} ({advice})" if advice else reason)


def _decide(evidence: Evidence, device_is_host: bool) -> tuple[Status, ErrorLink, str]:
    """Returns the status, the link that decided it, and a note to put before that link's text.

    On the CPU, no allocator of an accelerator is in use: its text alone is the user's own error.
    """
    typed = [(status, link) for link in evidence.chain if (status := _by_type(link)) is not None]
    texts = [(status, link) for link in evidence.chain if (status := _by_text(link)) is not None]
    texts = [found for found in texts if not (device_is_host and found[0] is Status.OUT_OF_MEMORY)]
    first = [found for found in typed + texts if found[0] in (Status.INTERRUPTED, Status.POISONED)]
    outermost = evidence.chain[0]
    if found := _most_urgent(first) or _most_urgent(typed):
        return *found, ""
    if evidence.new_ooms > 0:
        note = f"the allocator ran out of memory {evidence.new_ooms} times, which led to: "
        return Status.OUT_OF_MEMORY, outermost, note
    if found := _most_urgent(texts):
        return *found, ""
    wrapped = [bool(_LOADER_WORKER.search(link.text)) for link in evidence.chain]
    if evidence.phase != "fetch" and not any(wrapped):
        return Status.USER_ERROR, outermost, _NOTES.get(evidence.phase or "", "")
    # A killed worker causes a broken pipe in the process that reads from it. The same error inside a worker is
    # wrapped, and then comes from a connection of the data set.
    pairs = zip(evidence.chain, wrapped, strict=True)
    lost = next((link for link, inside in pairs if not inside and "ConnectionError" in _names(link)), None)
    return (Status.DATA_ERROR, outermost, "") if lost is None else (Status.WORKER_LOST, lost, "")


def _most_urgent(found: list[tuple[Status, ErrorLink]]) -> tuple[Status, ErrorLink] | None:
    return min(found, key=lambda pair: _URGENCY.index(pair[0]), default=None)


def _names(link: ErrorLink) -> frozenset[str]:
    return frozenset(name.removeprefix("builtins.") for name in (link.type_name, *link.bases))


def _by_type(link: ErrorLink) -> Status | None:
    if link.code in _CODES:
        return _CODES[link.code]
    found = [status for name in _names(link) if (status := _TYPES.get(name)) is not None]
    return min(found, key=_URGENCY.index, default=None)


def _by_text(link: ErrorLink) -> Status | None:
    names = _names(link)
    package = link.type_name.partition(".")[0]
    if names & _MUTE_TYPES or not (names & _TEXT_TYPES or package in _TEXT_PACKAGES):
        return None
    text = "\n".join(_message_lines(link.text))
    for entry in failure_texts():
        if entry.pattern.search(text):
            return None if entry.status is Status.USER_ERROR else entry.status
    return None


def _message_lines(text: str) -> list[str]:
    """Returns the lines of `text` without those of an embedded traceback, since source lines are not messages."""
    lines = text.splitlines()
    if not any("Traceback (most recent call last)" in line for line in lines):
        return lines
    return [line for line in lines if not line.startswith("  ") and "Traceback (most" not in line]


def _headline(link: ErrorLink) -> str:
    text = _one_line(" ".join(_message_lines(link.text))).partition(_HINT)[0].strip()
    name = _one_line(link.type_name) or "an unnamed error"
    if text and name.startswith(_OUR_ERRORS):  # says by itself what was found and expected
        return text
    return f"{name}: {text}" if text else name


def _last_location(traceback_text: str) -> str | None:
    """Returns the file, line and function of the last frame in `traceback_text`."""
    if not (places := _LOCATION.findall(traceback_text)):
        return None
    path, line, function = places[-1]
    file = path.replace("\\", "/").rpartition("/")[2]  # the text may come from a process on another system
    return _one_line(f"{file}:{line} in {function}")


def _classify_exit(evidence: Evidence) -> Failure:
    number, code = evidence.exit_signal, evidence.exit_code
    if number is None and code is not None and (code < 0 or 128 < code < 192):
        number = -code if code < 0 else code - 128  # subprocess, then shells and containers
    if number is None:
        ended = "without an exit code" if code is None else f"with exit code {code}"
        return Failure(Status.CRASHED, f"the process ended {ended} and left no result and no error")
    known = {each.value: each.name for each in signal.Signals}
    name = known.get(number, f"signal {number}")
    if number == signal.SIGINT:  # how CPython exits on an uncaught KeyboardInterrupt
        return Failure(Status.INTERRUPTED, f"the process was interrupted ({name})")
    if name == "SIGKILL":
        cause = "it may be the host's out-of-memory killer: see the kernel log or the cgroup's memory.events"
        return Failure(Status.CRASHED, f"the process was killed by {name}; {cause}")
    return Failure(Status.CRASHED, f"the process was terminated by {name}")


def _one_line(text: str) -> str:
    return " ".join(plain(text, TEXT_LIMIT).split())
