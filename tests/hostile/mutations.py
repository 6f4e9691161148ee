"""Valid files, damaged on purpose: as a tree, as text and as bytes."""

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import yaml
from hypothesis import strategies as st

Draw = Callable[[st.SearchStrategy[Any]], Any]
DEEP, LONG = 2_000, 20_000
_NUMBERS = (0, -1, 10**18, 2**63, 2**64, 10**400, -(10**30), 1e308, 1e-320, float("inf"), float("-inf"), float("nan"))
_TEXTS = (
    "", "\0", "\x1b[2J\x1b]0;title\x07", "\u202egnp.exe", "\ud800", "</script><script>alert(1)</script>",
    "../" * 40 + "etc/passwd", "a://" * LONG, "-eyJaaaaaaaaa" * 2000, "x" * LONG, "{{7*7}}{% raw %}",
    "%s%n{0}{0.__class__}", "postgresql://u:hunter2@h/d?password=hunter2", "9" * 5000, "9999-12-31T23:59:59.999999",
    "2026-01-01T00:00:00", "1e999", "~nobody-here/x", "/", "..", "//host/share", "\\\\host\\share", "env:HOME",
)  # fmt: skip
NASTY: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(_NUMBERS),
    st.sampled_from(_TEXTS),
    st.sampled_from((None, True, False, [], {}, [[]], {"": {}}, [None] * 50, {"schema": "autofit.plan/2"})),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
)
"""Values of wrong types and of extreme sizes, and texts that are dangerous where they are shown or run."""
_SNIPPETS = (
    b'!!python/object/apply:os.system ["touch executed"]', b"!!python/name:os.system", b"!<tag:x> ",
    b"%TAG ! tag:x:\n---\n", b"&a [*a, *a]", b"*a", b"<<: *a\n", b"---\n", b"...\n", b"\0", b"\xff\xfe",
    b"\xef\xbb\xbf", b"\x85", b"\xe2\x80\xa8", b"\t", b"\r", b'"\\UFFFFFFFF"', b'"\\ud800"', b"[" * DEEP, b"{" * DEEP,
    b"{a: " * DEEP, b"- " * DEEP, b"? " * DEEP, b"[" * DEEP + b"]" * DEEP, b'{"a":' * DEEP, b"x" * LONG, b"x: " * LONG,
    b"#" * LONG, b" " * LONG, b"\n" * LONG, b"'", b'"', b"|\n", b">-\n", b": ", b"1" * 5000, b"NaN", b"Infinity",
    b"1e999", b'{"op_code":0}\n', b'{"op_code":99999999999999999999}\n', b"[1]\n", b"{}\n",
)  # fmt: skip
_BOMB = b"a: &a [x, x]\n" + b"".join(b"b%d: &b%d [*a, *a, *a]\n" % (n, n) for n in range(30))


def _inner(text: object) -> Any:
    """Returns the container that a text holds as JSON, or None."""
    try:
        found = json.loads(text) if isinstance(text, str) and text[:1] in ("{", "[") else None
    except ValueError:
        return None
    return found or None


def changed_tree(draw: Draw, tree: Any) -> Any:
    """Returns a tree with one value replaced, removed, nested or given another key. `tree` itself may change."""
    if not tree or not isinstance(tree, dict | list):
        return deepcopy(draw(NASTY))
    parent: Any = tree
    while True:
        key = draw(st.sampled_from(list(parent) if isinstance(parent, dict) else range(len(parent))))
        if not parent[key] or not isinstance(parent[key], dict | list) or not draw(st.integers(0, 3)):
            break
        parent = parent[key]
    inner = _inner(parent[key])
    if inner is not None and draw(st.integers(0, 3)):
        parent[key] = json.dumps(changed_tree(draw, inner))
        return tree
    match draw(st.integers(0, 4)):
        case 0 if isinstance(parent, dict):
            parent[draw(st.one_of(st.text(max_size=8), st.sampled_from(_TEXTS)))] = parent.pop(key)
        case 0 if isinstance(parent, list):
            parent.append(parent[key])
        case 1:
            del parent[key]
        case 2:
            for _ in range(draw(st.sampled_from((1, 30)))):
                parent[key] = [parent[key]] if draw(st.booleans()) else {"a": parent[key]}
        case _:
            parent[key] = deepcopy(draw(NASTY))
    return tree


def changed_bytes(draw: Draw, data: bytes) -> bytes:
    """Returns bytes with a part flipped, cut out, doubled, or with something put in."""
    at = draw(st.integers(0, len(data)))
    end = min(len(data), at + draw(st.sampled_from((1, 2, 10, 100, 10**6))))
    match draw(st.integers(0, 6)):
        case 0:
            return data[:at] + bytes(b ^ draw(st.integers(1, 255)) for b in data[at : at + 1]) + data[at + 1 :]
        case 1:
            return data[:at] + data[end:]
        case 2:
            return data[:end] + data[at:end] * int(draw(st.sampled_from((1, 2, 50)))) + data[end:]
        case 3:
            return data[:at] + bytes(draw(st.binary(max_size=10))) + data[end:]
        case 4:
            return _BOMB + data
        case _:
            return data[:at] + bytes(draw(st.sampled_from(_SNIPPETS))) + data[at:]


@st.composite
def damaged_yaml(draw: Draw, valid: bytes) -> bytes:
    """Yields a YAML file that is damaged as a tree, as text, or both."""
    kinds, data = draw(st.sampled_from(("tree", "tree", "bytes", "both"))), valid
    if kinds != "bytes":
        tree = yaml.safe_load(valid)
        for _ in range(draw(st.integers(1, 3))):
            tree = changed_tree(draw, tree)
        data = yaml.dump(tree, allow_unicode=False).encode("utf-8", "surrogatepass")
    for _ in range(0 if kinds == "tree" else draw(st.integers(1, 3))):
        data = changed_bytes(draw, data)
    return data


@st.composite
def damaged_lines(draw: Draw, valid: bytes) -> bytes:
    """Yields a file of JSON lines of which some are damaged, missing, doubled or in another order."""
    lines = valid.splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(lines) - 1))
        match draw(st.integers(0, 5)):
            case 0:
                lines.insert(draw(st.integers(0, len(lines))), lines[at])
            case 1 if len(lines) > 1:
                del lines[at]
            case 2:
                lines[at] = changed_bytes(draw, lines[at])
            case _:
                try:
                    tree = json.loads(lines[at])
                except (ValueError, RecursionError):
                    continue
                lines[at] = json.dumps(changed_tree(draw, tree), separators=(",", ":")).encode() + b"\n"
    return b"".join(lines)
