import pytest

from autofit.core.environment import Environment

HERE = Environment(
    workload="abc",
    device_type="cpu",
    device_name="A processor",
    capacity_bytes=16 * 2**30,
    threads=2,
    versions={"torch": "2.13.0", "python": "3.11"},
    settings={"optimizer": "AdamW"},
)


def test_the_same_environment_is_comparable() -> None:
    assert HERE.comparable(HERE.model_copy())
    assert HERE.comparable(Environment.model_validate_json(HERE.model_dump_json()))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"workload": "xyz"}, "workload: abc, was xyz"),
        ({"device_name": "Another"}, "device: cpu A processor, was cpu Another"),
        ({"threads": 4}, "threads: 2, was 4"),
        ({"versions": {"torch": "2.11.0", "python": "3.11"}}, "torch: 2.13.0, was 2.11.0"),
        ({"versions": {"python": "3.11"}}, "torch: 2.13.0, was absent"),
        ({"settings": {"optimizer": "AdamW", "mode": "train"}}, "mode: absent, was train"),
        ({"capacity_bytes": 32 * 2**30}, "capacity: 16 GiB, was 32 GiB"),
    ],
)
def test_a_difference_is_named_and_ends_comparability(change: dict[str, object], named: str) -> None:
    there = HERE.model_copy(update=change)
    assert HERE.differences(there) == [named]
    assert not HERE.comparable(there)


def test_a_few_bytes_of_capacity_do_not_matter() -> None:
    assert HERE.comparable(HERE.model_copy(update={"capacity_bytes": HERE.capacity_bytes - 2**20}))
