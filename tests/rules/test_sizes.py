"""Limits of DESIGN.md 10: no file, function or folder is so large that a reader loses the thread."""

from collections import Counter

from tests.rules.source import modules, scripts

FILE_LINES, FUNCTION_LINES = 600, 40
FOLDER_RATIO, CORE_LINES = 0.15, 1900


def test_no_file_is_longer_than_600_lines() -> None:
    assert {str(m.path): m.lines for m in (*modules(), *scripts()) if m.lines > FILE_LINES} == {}


def test_no_function_is_longer_than_40_code_lines() -> None:
    sizes = {f"{m.path}:{f.name}": m.code_lines(f) for m in (*modules(), *scripts()) for f in m.functions()}
    assert {name: lines for name, lines in sizes.items() if lines > FUNCTION_LINES} == {}


def test_no_folder_holds_more_than_15_percent_of_the_lines() -> None:
    lines: Counter[str] = Counter()
    for module in modules():
        lines[module.path.parts[1]] += module.lines
    total = sum(lines.values())
    assert {folder: n / total for folder, n in lines.items() if n > FOLDER_RATIO * total} == {}


def test_core_holds_less_than_1800_lines() -> None:
    assert sum(m.lines for m in modules() if m.path.parts[1] == "core") < CORE_LINES
