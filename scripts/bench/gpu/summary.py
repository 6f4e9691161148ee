"""Writes SUMMARY.md, the readable results of all stages. It is made from the JSON files after each stage."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from scripts.bench import files

NAME = "SUMMARY.md"
_HIDDEN = ("capacity_bytes", "type")


def write(out: Path, state: Mapping[str, Any]) -> None:
    """Writes the page from the state of the suite and the figures of the stages in the same folder."""
    where, results = state["where"], state["results"]
    lines = ["# GPU suite", "", *_warnings(where)]
    lines += [f"{', '.join(f'{name} {value}' for name, value in where.items() if name not in _HIDDEN)}", ""]
    lines += ["| stage | result | seconds | in a line |", "|---|---|---|---|"]
    lines += [_row([name, r["status"], f"{r['seconds']:.0f}", r["line"]]) for name, r in results.items()]
    for name in results:
        lines += _details(name, out / f"{name}.json")
    files.write(out / NAME, "\n".join(lines) + "\n")


def _warnings(where: Mapping[str, Any]) -> list[str]:
    if where.get("phantom"):
        return ["**Made on a phantom GPU: times and values mean nothing, and memory is that of the phantom.**", ""]
    if where.get("type") == "cpu":
        return ["**A dry run on a CPU: the figures say nothing about a GPU.**", ""]
    return []


def _details(name: str, path: Path) -> list[str]:
    table = (files.read(path) or {}).get("table")
    if not table or not table["rows"]:
        return []
    head = [_row(table["columns"]), "|" + "---|" * len(table["columns"])]
    return ["", f"## {name}", "", *head, *(_row(row) for row in table["rows"])]


def _row(cells: list[str]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"
