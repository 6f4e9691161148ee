"""The code that applies a plan, and the command line or Python call that repeats its search, without secrets."""

import inspect
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from autofit.core.answer import Answer
from autofit.core.environment import TRAINER, UPDATE
from autofit.core.printable import redacted

DEFAULT_FILE = "autofit.yaml"
"""Plan file that the code names if the plan was not saved yet."""


def apply_code(answer: Answer, plan_file: str = "") -> str:
    """Returns Python code that loads a plan and applies it; `plan_file` is "" if it was not saved yet."""
    unsaved = f"# Save the plan first: fit.save({DEFAULT_FILE!r}), or `autofit tune ... -o {DEFAULT_FILE}`."
    lines = ["import autofit", "", f"fit = autofit.load({plan_file or DEFAULT_FILE!r})"]
    lines += applying_lines(answer, from_file=True)
    return "".join(f"{line}\n" for line in ([] if plan_file else [unsaved]) + lines)


def applying_lines(r: Answer, *, from_file: bool) -> list[str]:
    """Returns the code that applies a plan named `fit`: to the trainer that was tuned, or else in a loop.

    `from_file` is whether `fit` comes from a plan file, which has no functions.
    """
    settings = r.environment.settings
    if settings.get(TRAINER) == "transformers":
        return [
            "from autofit.integrations import huggingface",
            "args = huggingface.apply(fit, args)",
            "# before Trainer(model, args, ...)",
        ]
    if settings.get(TRAINER) == "lightning":
        return [
            "from autofit.integrations import lightning",
            "trainer = Trainer(",
            "    **lightning.trainer_arguments(fit),",
            "    callbacks=[lightning.ApplyPlan(fit)],",
            ")",
        ]
    inference = r.environment.is_inference
    given, result = ("model, loader", "output") if inference else ("model, loader, optimizer", "loss")
    update = settings.get(UPDATE)
    if from_file and update is not None:
        given += f", {update}={update}"
    note = ["# with the loss_fn or step_fn of tune"] if from_file and not inference and update is None else []
    lines = [*note, f"step = fit.prepare({given})", "for batch in step.loader:", f"    {result} = step(batch)"]
    if (ranks := r.environment.ranks) == 1:
        return lines
    met = [f"# on each of {ranks} ranks, as torchrun starts them", "torch.distributed.init_process_group()"]
    return [*met, *lines, "step.close()"]


def fitted(code: Sequence[str], width: int) -> list[str]:
    """Returns code with its long lines broken behind their last bracket; an import gets brackets for that."""
    lines = list[str]()
    for line in code:
        whole = line if "(" in line or " import " not in line else line.replace(" import ", " import (") + ")"
        head, bracket, rest = whole.rpartition("(")
        indent = len(line) - len(line.lstrip()) + 4
        lines += [line] if len(line) <= width or not bracket else [head + bracket, " " * indent + rest]
    return lines


_NAMED = re.compile(r"-{0,2}[\w.-]+=")
_NOT_SHOWN = ("progress", "listeners", "extras")
"""Arguments that do not change the search."""
_OF_OUTPUT = ("--quiet", "--json", "--force")
"""Flags of the command line that change only what is printed, or what may be replaced."""


def command_line(words: Sequence[str]) -> str:
    """Returns the `autofit` command line of these words for a shell, without flags on its output; secrets are "***"."""
    kept = ["autofit"]
    for word in words:
        # Flags may be abbreviated.
        if word == "-q" or (len(word) > len("--") and any(flag.startswith(word) for flag in _OF_OUTPUT)):
            continue
        safe, name = redacted(word), _NAMED.match(word)
        # If the value in NAME=VALUE has a secret, all of it is replaced.
        kept.append(safe if safe == word or name is None or "://" in word else f"{name[0]}***")
    return shlex.join(kept)


def tuning_call(function: Callable[..., object], values: Mapping[str, object]) -> str:
    """Returns the Python call of `autofit.tune` that has these arguments, without those that have their defaults.

    A function is written by its name. What cannot be written is `...`.
    """
    named = []
    for name, parameter in inspect.signature(function).parameters.items():
        value, default = values.get(name, parameter.default), parameter.default
        given = value is not default and not (isinstance(value, bool | int | float | str) and value == default)
        if parameter.kind is parameter.KEYWORD_ONLY and given and name not in _NOT_SHOWN:
            named.append(f"{name}={_code(value)}")
    return redacted(f"autofit.tune({', '.join(['model', 'loader', *named])})")


def _code(value: object) -> str:
    if isinstance(value, bool | int | float | str | Path):
        return repr(str(value) if isinstance(value, Path) else value)
    if isinstance(value, list | tuple) and all(isinstance(each, bool | int | float | str) for each in value):
        return repr(list(value))
    name = getattr(value, "__name__", "")
    return name if isinstance(name, str) and name.isidentifier() else "..."
