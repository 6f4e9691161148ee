"""A hook of mkdocs: the page of every message, each with its remedy, made from the source of autofit.

A message is found where it is written: the text of an error or of a warning, or any other text of at least four words.
Not counted are docstrings, help, assertions, and the modules that `remedies.yaml` names as no source of messages. Parts
that are known only when the message is shown are written as `…`. Many messages end with what to do next;
`remedies.yaml` has the remedies of the others. tests/examples/test_messages.py fails for a message that has neither.
"""

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from mkdocs.structure.files import File, Files

from autofit.core import errors

PACKAGE = Path(errors.__file__).parents[1]
REMEDIES = Path(__file__).with_name("remedies.yaml")
ERRORS = {name for name, each in vars(errors).items() if isinstance(each, type) and issubclass(each, Exception)}
ERRORS.add("warn")  # a warning needs a remedy as an error does
ADVISED = {"Untraceable"}
"""Errors whose texts are reasons: what to do next is added where they are shown."""
WORDS = 4
"""Texts with fewer words, parts that vary among them, are names and parts of messages."""
DESCRIPTIONS = {"help", "description", "epilog", "about", "cost", "heading", "missing"}
"""Names of arguments and attributes whose texts describe a part of autofit, and are not messages."""
LANGUAGES = {"compile"}
"""Names of functions whose texts are regular expressions."""
VERBS = (
    "add|allow|average|build|change|check|choose|close|compare|copy|correct|create|define|describe|do not|end|exclude|"
    "export|find|fix|free|give|install|keep|leave|let|load|look|make|move|name|override|pass|pin|put|quote|raise|rebuild|"
    "record|reduce|reload|remove|rename|repeat|replace|return|run|search|see|set|shorten|split|start|take|train|try|tune|"
    "unfreeze|unset|update|upgrade|use|wait|wrap|write"
)
"""Words with which advice begins."""
CAPITALS = "|".join(verb.capitalize() for verb in VERBS.split("|"))
ADVICE = re.compile(
    rf"(?:(?<=[.;:?] )|^)(?:{VERBS}|{CAPITALS}|To use (?:it|them)|If that matters|What would help)\b"
    rf"|(?<=[.;:?] )(?:`autofit|numerics='(?:any|mixed)' )|(?<=[…)] )(?:{CAPITALS})\b"
)
"""Where a message begins to say what to do next."""
EXPECTED = re.compile(r"\b[Ee]xpected (?=\S+ \S+)")
"""Where an error without advice says what to give instead."""

INTRODUCTION = """# Every message

Search this page for a part of the text that you saw. `…` stands for what varies, such as a name or a number. The table
of a subject has the messages with a remedy of their own; "Expected" says what to give instead. Reasons and notes under
a table have one remedy in common, which stands before them. For the kinds of errors, their exit codes and the outcomes
of trials, see [Errors and outcomes](messages.md).
"""


@dataclass(frozen=True)
class Message:
    """A text that a user may see.

    Attributes:
        module: path of its module in the package, without suffix.
        text: what it says; parts that vary are `…`.
        error: name of its class, "warn" for a warning, or "" for a reason, a note or another text.
    """

    module: str
    text: str
    error: str = ""

    def parts(self) -> tuple[str, str]:
        """Returns what it says of the cause, and what it says to do next, or ""."""
        found = ADVICE.search(self.text) or (EXPECTED.search(self.text) if self.error else None)
        at = found.start() if found else len(self.text)
        return self.text[:at].rstrip(" .;:"), self.text[at:]


@dataclass(frozen=True)
class Subject:
    """A part of the page: see `remedies.yaml`."""

    title: str
    modules: tuple[str, ...]
    remedies: dict[str, str]
    otherwise: str = ""

    def remedy(self, message: Message) -> str:
        """Returns what to do about a message, or "" if there is no remedy."""
        written = next((remedy for part, remedy in self.remedies.items() if part in message.text), "")
        if ADVICE.search(message.text) or (message.parts()[1] and not written):
            return message.parts()[1]
        return written or ("" if message.error not in {"", *ADVISED} else self.otherwise)


def subjects() -> list[Subject]:
    """Returns the parts of the page. The first has the modules without messages, and no title."""
    read = yaml.safe_load(REMEDIES.read_text(encoding="utf-8"))
    found = [Subject("", tuple(read["not messages"]), {}, "none")]
    for each in read["subjects"]:
        remedies = {part: remedy for remedy, parts in each.get("remedies", {}).items() for part in parts}
        found.append(Subject(each["title"], tuple(each["modules"]), remedies, each.get("otherwise", "").strip()))
    return found


def by_subject() -> dict[str, list[Message]]:
    """Returns the messages of each subject by its title, and those of modules in no subject under "?"."""
    found: dict[str, list[Message]] = {}
    for message in messages():
        parts = message.module.split("/")
        above = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
        places = _places(errors=bool(message.error))
        found.setdefault(next((places[each] for each in above if each in places), "?"), []).append(message)
    return found


@cache
def _places(errors: bool) -> dict[str, str]:
    """Returns the title of the subject of each module. An error is a message wherever it is raised."""
    listed = subjects()[1:] if errors else subjects()
    return {module: subject.title for subject in reversed(listed) for module in subject.modules}


def messages() -> list[Message]:
    """Returns every message of the package, in the order of the source, each once per module."""
    found: dict[Message, None] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        constants = _constants(tree)
        module = path.relative_to(PACKAGE).with_suffix("").as_posix()
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
        inlined = {text for name, text in constants.items() if name in used}
        for text, error in _texts(tree, "", constants):
            if re.search("[a-z]{2}", text) if error else _is_message(text) and text not in inlined:
                found[Message(module, text, error)] = None
    return list(found)


def _constants(tree: ast.Module) -> dict[str, str]:
    """Returns the texts that the module gives names to: messages are put together from them."""
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name) and _is_text(node.value):
            found[node.targets[0].id] = _template(node.value, found)
    return found


def _texts(node: ast.AST, error: str, constants: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yields each text below a node, with the class of the error that it belongs to."""
    if isinstance(node, ast.Assert | ast.Compare) or _described(node):
        return
    children: Iterable[ast.AST]
    if _is_text(node):
        yield _template(node, constants), error
        children, error = _varying(node), ""
    elif isinstance(node, ast.Call) and (name := ast.unparse(node.func).rpartition(".")[2]) in ERRORS:
        children, error = node.args[:1], name  # the others say where it happened
    else:
        children, error = ast.iter_child_nodes(node), ""
    for child in children:
        yield from _texts(child, error, constants)


def _varying(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the parts of a text that are not known before it is shown."""
    if isinstance(node, ast.BinOp):
        yield from (*_varying(node.left), *_varying(node.right))
    elif isinstance(node, ast.JoinedStr):
        yield from (part.value for part in node.values if isinstance(part, ast.FormattedValue))
    elif not isinstance(node, ast.Constant):
        yield node


def _described(node: ast.AST) -> bool:
    """Returns whether a node is a docstring, or a text that describes a part of autofit."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign):
        return ast.unparse(node.targets[0]) in DESCRIPTIONS
    if isinstance(node, ast.Call):
        return ast.unparse(node.func).rpartition(".")[2] in LANGUAGES
    return isinstance(node, ast.keyword) and node.arg in DESCRIPTIONS


def _is_text(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _is_text(node.left) or _is_text(node.right)
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _template(node: ast.AST, constants: dict[str, str]) -> str:
    """Returns a text with `…` for each part that is not known before it is shown."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return _template(node.left, constants) + _template(node.right, constants)
    if isinstance(node, ast.JoinedStr):
        return "".join(_template(part, constants) for part in node.values)
    if isinstance(node, ast.FormattedValue):
        return _template(node.value, constants) if isinstance(node.value, ast.Name) else "…"
    if isinstance(node, ast.Name):
        return constants.get(node.id, "…")
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else "…"


def _is_message(text: str) -> bool:
    """Returns whether a text is a message by itself: several words, and not what is added to another text."""
    words = text.split()
    if len(words) < WORDS or sum(bool(re.search("[A-Za-z]", word)) for word in words) < WORDS - 1:
        return False
    return not (ADVICE.match(text) or re.search(r"^[\s,;:.)(#<]|^…[,;]|^Traceback|^Did you|^Expected|\|", text))


def page() -> str:
    """Returns the page of all messages, as Markdown."""
    listed = by_subject()
    return "\n\n".join([INTRODUCTION, *(_section(each, listed.get(each.title, [])) for each in subjects()[1:])])


def _section(subject: Subject, listed: list[Message]) -> str:
    rows, others = ["| message | what to do |", "|---|---|"], []
    for message in listed:
        (cause, advice), remedy = message.parts(), subject.remedy(message)
        if remedy == subject.otherwise:
            others.append(f"* {_shown(message.text)}")
        elif remedy == advice:
            shown = cause if re.search("[a-z]", cause) else message.text
            rows.append(f"| {_shown(shown)} | {_shown(advice[:1].upper() + advice[1:])} |")
        else:
            rows.append(f"| {_shown(message.text)} | {remedy} |")
    table = ["\n".join(dict.fromkeys(rows))] if rows[2:] else []
    rest = [f"**{subject.otherwise}**", "\n".join(dict.fromkeys(others))] if others else []
    return "\n\n".join([f"## {subject.title}", *table, *rest])


def _shown(text: str) -> str:
    """Returns a text in which no character has a meaning in Markdown, on one line."""
    return re.sub(r"[^\w\s.,;:…=/()'\"-]|_", lambda found: f"&#{ord(found[0])};", " ".join(text.split()))


def on_files(files: Files, config: Any) -> Files:
    """Adds the page of all messages."""
    files.append(File.generated(config, "every_message.md", content=page()))
    return files
