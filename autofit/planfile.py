"""The plan file: an Answer as YAML that can be read, compared and kept under version control."""

import math
import re
import reprlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from autofit import strict_yaml
from autofit.core.answer import PLAN_SCHEMA, Answer
from autofit.core.errors import PlanFileError
from autofit.core.measurement import Measurement
from autofit.core.objective import Objective
from autofit.core.plan import ACCUMULATION_STEPS, MICRO_BATCH_SIZE, Plan
from autofit.core.printable import one_line, redacted
from autofit.core.strict import LARGEST
from autofit.core.wording import a_type, describe_outcome, describe_plan
from autofit.files import head_of, replaceable, unwritable, write_atomically

MAX_BYTES = 2**20
"""Maximum size of a plan file. A record of this size has fewer values than the limit of `strict_yaml`."""
_ROOM_RATIO = 0.95
"""Target size of a file that is too large, as a share of `MAX_BYTES`. The margin allows for alternatives of different
lengths."""
MOST_SAMPLES = 2**31
"""Maximum micro batch size and number of accumulation steps."""
_SHOWN_ERRORS = 3
_SHOWN_LETTERS = 200
_SCHEMA_LINE = re.compile(rb"^schema: *['\"]?autofit\.plan/", re.MULTILINE)
_JOURNAL_HEAD = b'{"op_code":'
_AGAIN = "Create the file again with `autofit tune ... -o FILE`, or correct it."


def dumps(answer: Answer) -> str:
    """Returns the text of the plan file: a comment, then the complete record. `load` returns an equal record."""
    full = answer.model_dump(mode="json", by_alias=True)
    changed = answer.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    return _comment(answer) + strict_yaml.dump(_without_empty(full, changed))


def save(answer: Answer, path: str | Path, *, force: bool = False) -> None:
    """Writes the plan file atomically. An earlier plan file at `path` is replaced and its mode is kept.

    If the alternatives do not fit into the file, those of evaluation are left out, and then the last ones that are not
    on the Pareto front, with a caveat.

    Args:
        answer: the record to write.
        path: path of the file. Links are followed.
        force: whether a file that is not a plan may be replaced.

    Raises:
        PlanFileError: `path` is not a plan file, or cannot be written.
    """
    data = dumps(answer).encode()
    if len(data) > MAX_BYTES and answer.evaluation is not None:
        answer = answer.model_copy(update={"evaluation": _shortened(answer.evaluation, 0.0)})
        data = dumps(answer).encode()
    share = 1.0
    while len(data) > MAX_BYTES and share * len(answer.alternatives) >= 1:
        share *= _ROOM_RATIO * MAX_BYTES / len(data)
        data = dumps(_shortened(answer, share)).encode()
    if len(data) > MAX_BYTES:
        raise PlanFileError(
            f"the plan file would be {len(data)} bytes without alternatives; expected at most {MAX_BYTES}, the "
            "limit for reading. Shorten its caveats."
        )
    try:
        write_atomically(check_replaceable(path, force=force), data)
    except OSError as error:
        raise unwritable(path, error, PlanFileError) from error


def _shortened(answer: Answer, share: float) -> Answer:
    """Returns an answer with a share of its alternatives: those on the Pareto front, then the first ones; in order."""
    others, total = answer.alternatives, len(answer.alternatives)
    first = sorted(range(total), key=lambda at: (not others[at].on_front, at))[: int(share * total)]
    caveat = f"{total - len(first)} of {total} alternatives are left out of this file; the study contains them"
    kept = tuple(others[at] for at in sorted(first))
    return answer.model_copy(update={"alternatives": kept, "caveats": (*answer.caveats, caveat)})


def check_replaceable(path: str | Path, *, force: bool = False) -> Path:
    """Returns the path to which `save` would write, with links resolved, so that links are kept.

    Raises:
        PlanFileError: the path is not an earlier plan file, even a damaged one.
        OSError: the file there cannot be read, or the links form a loop.
    """
    return replaceable(path, "an autofit plan", _is_earlier, force=force, error=PlanFileError)


def load(path: str | Path) -> Answer:
    """Returns the answer of a plan file.

    Raises:
        PlanFileError: the file is missing, damaged, too large, or of another schema.
    """
    text = _read(Path(path))
    try:
        data = strict_yaml.load(text)
    except strict_yaml.UNREADABLE as error:
        where = getattr(error, "problem_mark", None)
        line = f" in line {where.line + 1}" if where is not None else ""
        problem = _short(getattr(error, "problem", None) or str(error).partition("\n")[0])
        raise PlanFileError(f"{path} is not readable as YAML{line}: {problem}. {_AGAIN}") from error
    if not isinstance(data, dict):
        found = "nothing" if data is None else a_type(data)
        raise PlanFileError(f"{path}: found {found}; expected a mapping that begins with `schema`. {_AGAIN}")
    _check_schema(data, path)
    try:
        answer = Answer.model_validate(data)
    except ValidationError as error:
        raise PlanFileError(f"{path} is not valid {PLAN_SCHEMA}: {_explained(error)}. {_AGAIN}") from error
    for problem in problems(answer):
        raise PlanFileError(f"{path}: {problem}. {_AGAIN}")
    return _without_secrets(answer)


def _without_secrets(answer: Answer) -> Answer:
    """Returns an answer without the passwords of URLs. One that autofit wrote has none."""
    inner = None if answer.evaluation is None else _without_secrets(answer.evaluation)
    texts = {"study": redacted(answer.study), "command": redacted(answer.command), "title": redacted(answer.title)}
    return answer.model_copy(update={**texts, "evaluation": inner})


def _comment(answer: Answer) -> str:
    plan, baseline, gain = answer.plan, answer.baseline, answer.gain
    outcome = describe_outcome(baseline.outcome, answer.objective.unit, baseline.rate_per_s)
    lines = [
        "An autofit plan, made by `autofit tune`. `autofit show FILE` explains it, `autofit.load(FILE)` applies it.",
        f"{describe_plan(plan, baseline.plan)}{f': {gain} the throughput of the baseline' if gain else ''}",
        f"baseline: {describe_plan(baseline.plan, baseline.plan)}: {outcome}",
    ]
    return "".join(f"# {one_line(line)}\n" for line in lines)


def _without_empty(full: Any, changed: Any) -> Any:
    """Returns `full` without entries whose empty value is the default. `changed` is `full` without defaults."""
    if isinstance(full, dict):
        return {
            key: _without_empty(value, changed.get(key, value))
            for key, value in full.items()
            if key in changed or value not in (None, "", [], {})
        }
    if isinstance(full, list):
        return [_without_empty(value, other) for value, other in zip(full, changed, strict=True)]
    return full


def _read(path: Path) -> str:
    try:
        data = head_of(path, MAX_BYTES + 1)
    except OSError as error:
        raise PlanFileError(
            f"cannot read the plan file {path}: {error.strerror or error}; expected a file that `autofit tune` "
            "or `fit.save` wrote. Check the path."
        ) from error
    if data.startswith(_JOURNAL_HEAD):
        raise PlanFileError(
            f"{path}: found a study (a journal of trials); expected a plan file, which `autofit tune` writes with -o. "
            f"`autofit report {path}` shows a study."
        )
    if len(data) > MAX_BYTES:
        raise PlanFileError(
            f"{path}: found more than {MAX_BYTES} bytes; expected a plan file, which is at most that size."
        )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PlanFileError(f"{path}: found bytes that are not UTF-8; expected YAML text. {_AGAIN}") from error


def _check_schema(data: dict[Any, Any], path: str | Path) -> None:
    found = data.get("schema")
    if found == PLAN_SCHEMA:
        return
    if found is None:
        raise PlanFileError(f"{path}: found no `schema`; expected `schema: {PLAN_SCHEMA}`. {_AGAIN}")
    if isinstance(found, str) and re.fullmatch(r"autofit\.plan/[1-9][0-9]{0,5}", found):
        raise PlanFileError(
            f"{path}: found schema {found}, written by a newer autofit; expected {PLAN_SCHEMA}. Upgrade autofit, or "
            "create the file again with this version."
        )
    raise PlanFileError(f"{path}: found schema {reprlib.repr(found)}; expected {PLAN_SCHEMA}. {_AGAIN}")


def _explained(error: ValidationError) -> str:
    """Returns the first problems as "place: found, expected"."""
    texts = []
    errors = error.errors(include_url=False, include_context=False)
    for problem in errors[:_SHOWN_ERRORS]:
        place = _short(".".join(map(str, problem["loc"]))) or "the file"
        found = "nothing" if problem["type"] == "missing" else reprlib.repr(problem["input"])
        texts.append(f"{place}: found {found}; expected: {problem['msg']}")
    more = len(errors) - _SHOWN_ERRORS
    return "; ".join(texts) + (f"; and {more} more" if more > 0 else "")


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN_LETTERS else f"{text[:_SHOWN_LETTERS]} ..."


def _is_earlier(path: Path) -> bool:
    """Returns whether a file is empty or an earlier plan, which may be damaged."""
    head = head_of(path, 2**16)
    return not head or _SCHEMA_LINE.search(head) is not None


def problems(answer: Answer) -> Iterator[str]:
    """Yields values beyond their types that a search cannot have produced, as "place: found ...; expected ..."."""
    r = answer
    candidates = {"baseline": r.baseline} | {f"alternatives.{n}": c for n, c in enumerate(r.alternatives)}
    for place, plan in {"plan": r.plan, **{f"{place}.plan": c.plan for place, c in candidates.items()}}.items():
        yield from _of_batch(place, plan)
    runs = {f"{place}.outcome.measurement": c.outcome.measurement for place, c in candidates.items()}
    for place, run in {"proof": r.proof, **runs}.items():
        yield from () if run is None else _of_times(place, run, r.objective)
    for place, ratio in {"gain": r.gain, **{f"{place}.gain": c.gain for place, c in candidates.items()}}.items():
        if ratio is not None and not ratio.low <= ratio.value <= ratio.high:
            yield f"{place}: found {ratio.value:g} ({ratio.low:g} to {ratio.high:g}); expected low <= value <= high"
    if r.evaluation is not None:
        yield from (f"evaluation.{problem}" for problem in problems(r.evaluation))


def _of_batch(place: str, plan: Plan) -> Iterator[str]:
    """Checks the knobs that `Plan` uses. Other knobs are checked by the strategies that own them."""
    for knob in (MICRO_BATCH_SIZE, ACCUMULATION_STEPS):
        value = plan.values.get(knob, 1 if knob == ACCUMULATION_STEPS else None)
        if type(value) is not int or not 1 <= value <= MOST_SAMPLES:
            yield f"{place}.values: found {knob}: {reprlib.repr(value)}; expected an integer from 1 to {MOST_SAMPLES}"


def _of_times(place: str, run: Measurement, objective: Objective) -> Iterator[str]:
    if not (min(run.step_times_s) > 0 and 0 < objective.score(run) < LARGEST):
        times = reprlib.repr(list(run.step_times_s))
        yield f"{place}: found step times of {times} s; expected seconds above 0 and a finite throughput"
    if not math.isfinite(run.startup_s or 0.0):
        yield f"{place}.startup_s: found {run.startup_s}; expected seconds"
