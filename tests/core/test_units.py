import pytest

from autofit.core.errors import UsageError
from autofit.core.units import (
    format_bytes,
    format_duration,
    format_names,
    format_ratio,
    parse_budget,
    parse_bytes,
    parse_duration,
)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (1024, 1024),
        ("1024", 1024),
        ("20GiB", 20 * 2**30),
        ("20 GB", 20 * 10**9),
        ("512 MB", 512 * 10**6),
        ("1.5gib", 3 * 2**29),
        ("2e3", 2000),
        (" 1 KiB ", 1024),
        ("7b", 7),
    ],
)
def test_bytes_are_read(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize(
    "text",
    [
        "",
        "GiB",
        "-1",
        0,
        -5,
        "0GiB",
        "1 XB",
        "1,5GiB",
        "nan",
        "inf",
        "1GiB2",
        True,
        "1e400GiB",
        "1e308TiB",
        "9" * 400,
        10**400,
        2**63,
    ],
)
def test_what_is_not_a_memory_is_refused(text: str | int) -> None:
    with pytest.raises(UsageError, match="memory"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(300, 300.0), ("5min", 300.0), ("5 m", 300.0), ("90s", 90.0), ("1.5h", 5400.0), ("250ms", 0.25), ("2 sec", 2.0)],
)
def test_durations_are_read(text: str | float, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "min", "0s", "5 days", "-3s", "1e400s", "1e308h", "inf", "nan"])
def test_what_is_not_a_time_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="time"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "unknown"),
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536 * 2**20, "1.5 GiB"),
        (1010 * 2**20, "1010 MiB"),
        (3 * 2**40, "3 TiB"),
        (5000 * 2**40, "5000 TiB"),
    ],
)
def test_bytes_are_printed(count: int | None, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize("count", [1, 1023, 1024, 10**6, 2**30 + 1, 999 * 2**20, 17 * 2**40])
def test_what_is_printed_can_be_read_again(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == pytest.approx(count, rel=0.001)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0384, "38.4 ms"),
        (4.2, "4.2 s"),
        (59.9, "59.9 s"),
        (60, "1 min 0 s"),
        (200, "3 min 20 s"),
        (3600, "1 h 0 min"),
        (9000, "2 h 30 min"),
    ],
)
def test_durations_are_printed(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize("seconds", [0.99999, 59.97, 59.999])
def test_a_duration_just_below_a_unit_is_not_printed_beyond_it(seconds: float) -> None:
    assert format_duration(seconds) not in ("1e+03 ms", "60 s")


@pytest.mark.parametrize("given", ["20", 20, "512", 80, "80000"])
def test_a_budget_of_a_few_bytes_was_meant_in_gib(given: str | int) -> None:
    with pytest.raises(
        UsageError, match=rf'found a memory budget of {given} bytes; did you mean "{given}GiB"\?'
    ) as why:
        parse_budget(given)
    assert len(str(why.value)) < 120


@pytest.mark.parametrize(
    ("given", "count"), [("20B", 20), ("1 KiB", 1024), (2**20, 2**20), (100_000, 100_000), ("1073741824", 2**30)]
)
def test_a_budget_with_a_unit_or_of_many_bytes_is_taken_as_it_is(given: str | int, count: int) -> None:
    assert parse_budget(given) == count


@pytest.mark.parametrize(
    ("count", "text"), [(1, "a"), (3, "a, b, c"), (4, "a, b, c and 1 more"), (26, "a, b, c and 23 more")]
)
def test_the_first_names_are_shown_and_the_others_counted(count: int, text: str) -> None:
    assert format_names("abcdefghijklmnopqrstuvwxyz"[:count], 3) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "<0.01x"), (0.004, "<0.01x"), (0.01, "0.01x"), (0.032, "0.03x"), (1.0, "1.00x"), (1.3249, "1.32x"),
        (9.99, "9.99x"), (9.996, "10x"), (12.84, "12.8x"), (99.94, "99.9x"), (99.96, "100x"), (128.03, "128x"),
        (1019.65, "1,020x"), (2.5e6, "2,500,000x"),
    ],
)  # fmt: skip
def test_a_ratio_has_three_digits_at_most_beyond_ten_and_no_false_zero(value: float, text: str) -> None:
    assert format_ratio(value) == text


def test_a_ratio_may_have_more_decimals_and_no_sign() -> None:
    assert format_ratio(1.0126, 3) == "1.013x"
    assert format_ratio(0.0004, 3, "") == "<0.001"
