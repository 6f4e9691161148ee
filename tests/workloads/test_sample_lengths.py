"""The lengths of samples: measured once each, and the same order of lengths whether some or all are measured."""

from typing import Any

from autofit.workloads.lengths import SampleLengths, scan

TEXTS = [{"text": [0] * length, "image": [0.0] * 4} for length in (3, 9, 3, 1, 7, 5)]


class Reading:
    """Samples by key; notes which are read."""

    def __init__(self, samples: list[Any], first: int = 0) -> None:
        self.samples, self.first, self.read = samples, first, list[int]()

    def __call__(self, key: int) -> Any:
        self.read.append(key)
        return self.samples[key - self.first]


def test_a_sample_is_read_when_its_length_is_asked_for_the_first_time() -> None:
    reading = Reading(TEXTS)
    lengths = SampleLengths(range(6), reading, scan(reading, 6, 2))  # the first and the last
    reading.read.clear()
    assert lengths.fields == (".text",)
    assert 0 in lengths
    assert 1 not in lengths
    assert [lengths.total(key) for key in (0, 1, 1, 5)] == [3, 9, 9, 5]
    assert reading.read == [1]
    assert 1 in lengths


def test_all_are_read_once_and_are_in_the_same_order() -> None:
    for first in (0, 10):  # keys from 0 are kept in an array, others in a dictionary
        reading = Reading(TEXTS, first)
        keys = range(first, first + 6)
        lengths = SampleLengths(keys, reading, scan(TEXTS.__getitem__, 6, 6))
        reading.read.clear()
        length_of = lengths.of_all
        assert reading.read == list(keys)
        assert (
            sorted(keys, key=length_of) == sorted(keys, key=lengths.total) == [first + at for at in (3, 0, 2, 5, 4, 1)]
        )
        assert lengths.of_all is length_of
        assert reading.read == list(keys)


def test_a_length_that_the_scan_did_not_see_vary_counts_once_all_are_read() -> None:
    samples = [[0] * 4 for _ in range(9)] + [[0] * 8]
    lengths = SampleLengths(range(10), samples.__getitem__, scan(samples[:9].__getitem__, 9, 9))
    assert [lengths.total(key) for key in (0, 9)] == [0, 0]
    assert [lengths.of_all(key) for key in (0, 9)] == [4, 8]
