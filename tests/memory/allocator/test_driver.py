"""A device's memory, given in pages of 2 MiB."""

from autofit.memory.allocator.blocks import PAGE_BYTES, Driver


def test_memory_is_given_in_pages_and_counted_in_bytes() -> None:
    driver = Driver(capacity_bytes=3 * PAGE_BYTES)
    assert driver.take(PAGE_BYTES + 1)  # two pages
    assert driver.take(PAGE_BYTES)
    assert not driver.take(1)
    assert driver.reserved_bytes == 2 * PAGE_BYTES + 1


def test_what_does_not_fit_takes_nothing() -> None:
    driver = Driver(capacity_bytes=3 * PAGE_BYTES)
    assert not driver.take(PAGE_BYTES, count=4)
    assert driver.reserved_bytes == driver.peak_reserved_bytes == 0
    assert driver.take(PAGE_BYTES, count=3)


def test_the_peak_stays_when_memory_is_given_back() -> None:
    driver = Driver(capacity_bytes=2 * PAGE_BYTES)
    driver.take(PAGE_BYTES, count=2)
    driver.give_back(PAGE_BYTES, count=2)
    assert (driver.reserved_bytes, driver.peak_reserved_bytes) == (0, 2 * PAGE_BYTES)
    assert driver.take(PAGE_BYTES, count=2)


def test_without_a_capacity_there_is_always_more() -> None:
    assert Driver().take(2**50)


def test_address_space_never_overlaps() -> None:
    driver = Driver()
    first, second = driver.addresses(PAGE_BYTES + 1), driver.addresses(10)
    assert second >= first + 2 * PAGE_BYTES
