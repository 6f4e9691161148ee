"""A hook of mkdocs: pages that are made from the code, so that they are never out of date.

* `strategies.md` gets a section for each strategy, from its attributes.
* `commands.md` is the help of each command.
"""

import argparse
import os
from typing import Any

from mkdocs.structure.files import File, Files

from autofit.cli import parser
from autofit.core.space import EFFECT_ON_RESULTS
from autofit.strategies import BUILT_IN
from autofit.strategies.base import Strategy


def on_files(files: Files, config: Any) -> Files:
    """Adds the page of commands."""
    files.append(File.generated(config, "commands.md", content=commands()))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Replaces the placeholder for the strategies."""
    return markdown.replace("<!-- strategies -->", strategy_sections())


def commands() -> str:
    """Returns the help of every command, as Markdown."""
    os.environ["COLUMNS"] = "96"  # argparse wraps at the width of the terminal
    (group,) = [each for each in parser()._actions if isinstance(each, argparse._SubParsersAction)]
    texts = [f"## autofit {name}\n\n```text\n{one.format_help()}```\n" for name, one in group.choices.items()]
    return "\n".join(["# Commands", "", *texts])


def strategy_sections() -> str:
    """Returns a section for each strategy: what it does, what it costs, and whether it changes the result."""
    return "\n".join(_section(strategy) for strategy in BUILT_IN)


def _section(strategy: type[Strategy]) -> str:
    knobs = ", ".join(f"`{knob}`" for knob in strategy.owns)
    return (
        f"## {strategy.name}\n\n"
        f"{strategy.about[0].upper()}{strategy.about[1:]}.\n\n"
        f"* **Costs:** {strategy.cost}.\n"
        f"* **Effect:** {EFFECT_ON_RESULTS[strategy.effect]}.\n"
        f"* **Knobs:** {knobs}\n"
    )
