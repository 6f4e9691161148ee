"""The rules of the two JUnit schemas in common use, for a machine without an XSD validator.

They are those of Ant's JUnit task (windyroad/JUnit-Schema, JUnit.xsd), which is the stricter one, and of Jenkins' xUnit
plugin (junit-10.xsd).
"""

import re
from collections.abc import Iterator
from xml.etree import ElementTree

TOKEN = re.compile(r"(\S+( \S+)*)?")
DECIMAL = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?")
SUREFIRE_TIME = re.compile(r"(([0-9]{0,3},)*[0-9]{3}|[0-9]{0,3})*(\.[0-9]*)?")
TIMESTAMP = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}")
INTEGER = re.compile(r"[0-9]+")
SUITE = {
    "name": TOKEN, "package": TOKEN, "hostname": TOKEN, "id": INTEGER, "tests": INTEGER, "failures": INTEGER,
    "errors": INTEGER, "skipped": INTEGER, "time": DECIMAL, "timestamp": TIMESTAMP,
}  # fmt: skip
CASE = {"name": TOKEN, "classname": TOKEN, "time": DECIMAL}
OUTCOMES = {"failure": {"message", "type"}, "error": {"message", "type"}, "skipped": {"message"}}


def broken_rules(text: str) -> list[str]:
    """Returns the rules that a document breaks."""
    root = ElementTree.fromstring(text)
    found = [] if root.tag == "testsuites" and not root.attrib else ["the root is testsuites without attributes"]
    return [*found, *(rule for suite in root for rule in _of_suite(suite))]


def _of_suite(suite: ElementTree.Element) -> Iterator[str]:
    if suite.tag != "testsuite" or set(suite.attrib) != set(SUITE):
        yield f"a suite has exactly the attributes {sorted(SUITE)}"
    yield from (
        f"{name}={suite.get(name)!r}" for name, rule in SUITE.items() if not rule.fullmatch(suite.get(name, ""))
    )
    if not SUREFIRE_TIME.fullmatch(suite.get("time", "")) or not suite.get("name") or not suite.get("hostname"):
        yield "a suite has a name, a host and a time"
    tags = [child.tag for child in suite]
    cases = [child for child in suite if child.tag == "testcase"]
    if tags != ["properties", *["testcase"] * len(cases), "system-out", "system-err"]:
        yield "a suite holds properties, test cases, system-out and system-err in this order"
    for one in suite.iterfind("properties/*"):
        if one.tag != "property" or set(one.attrib) != {"name", "value"} or not one.get("name"):
            yield "a property has a name and a value"
    for case in cases:
        yield from _of_case(case)
    counts = {"tests": len(cases), **{key: len(suite.findall(f"testcase/{tag}")) for key, tag in _COUNTS.items()}}
    yield from (f"{name} counts {suite.get(name)}" for name, count in counts.items() if suite.get(name) != str(count))


_COUNTS = {"failures": "failure", "errors": "error", "skipped": "skipped"}


def _of_case(case: ElementTree.Element) -> Iterator[str]:
    if set(case.attrib) != set(CASE) or not case.get("name"):
        yield f"a test case has exactly the attributes {sorted(CASE)}"
    yield from (f"{name}={case.get(name)!r}" for name, rule in CASE.items() if not rule.fullmatch(case.get(name, "")))
    if len(case) > 1 or any(len(child) for child in case):
        yield "a test case holds one outcome at most, and that holds text"
    for child in case:
        if set(child.attrib) != OUTCOMES.get(child.tag):
            yield f"{child.tag} has the attributes {sorted(child.attrib)}"
