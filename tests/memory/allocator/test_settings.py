"""What PYTORCH_ALLOC_CONF says, and the sizes that follow from it."""

import pytest

from autofit.core.errors import UsageError
from autofit.memory.allocator.settings import INTERVALS, MIB, Settings


@pytest.mark.parametrize(
    ("asked", "rounded"), [(1, 512), (512, 512), (513, 1024), (MIB, MIB), (MIB + 1, MIB + 512), (3 * MIB, 3 * MIB)]
)
def test_sizes_are_multiples_of_512(asked: int, rounded: int) -> None:
    assert Settings().rounded(asked) == rounded


def test_divisions_round_up_to_the_next_part_of_a_power_of_two() -> None:
    settings = Settings.parse("roundup_power2_divisions:4")
    assert settings.rounded(1200 * 1024) == 1280 * 1024  # the example in the comment of torch's source
    assert settings.rounded(1024 * 1024) == 1024 * 1024
    assert settings.rounded(2048) == 2048  # not above 512 times the divisions
    assert settings.rounded(2049) == 2560


def test_divisions_differ_by_size() -> None:
    settings = Settings.parse("roundup_power2_divisions:[256:1, 512:2, 1024:4, >:8]")
    assert settings.divisions == (1,) * 9 + (2, 4, 8, 8, 8, 8, 8)
    assert len(settings.divisions) == INTERVALS
    assert settings.rounded(300 * MIB + 1) == 300 * MIB + 512
    assert settings.rounded(600 * MIB) == 768 * MIB
    assert settings.rounded(1100 * MIB) == 1280 * MIB
    assert settings.rounded(2100 * MIB) == 2304 * MIB


def test_segments_follow_the_request() -> None:
    settings = Settings()
    cases = {1: 2 * MIB, MIB: 2 * MIB, MIB + 512: 20 * MIB, 10 * MIB - 512: 20 * MIB, 10 * MIB: 10 * MIB}
    assert {size: settings.segment_bytes(size) for size in cases} == cases
    assert settings.segment_bytes(10 * MIB + 512) == 12 * MIB
    assert Settings.parse("large_segment_size_mb:32").segment_bytes(2 * MIB) == 32 * MIB


def test_options_without_effect_are_accepted_and_options_not_simulated_are_named() -> None:
    settings = Settings.parse("pinned_num_register_threads:8,throw_on_cudamalloc_oom:True,max_split_size_mb:64")
    assert settings.max_split_bytes == 64 * MIB
    assert len(settings.notes) == 1
    assert settings.notes[0].startswith("throw_on_cudamalloc_oom:True")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_spilt_size_mb:64", "unknown allocator option 'max_spilt_size_mb'"),
        ("backend:cudaMallocAsync", "cudaMallocAsync"),
        ("max_split_size_mb:19", "at least 20"),
        ("max_split_size_mb:32,large_segment_size_mb:64", "at least 64"),
        ("garbage_collection_threshold:1", "between 0 and 1"),
        ("garbage_collection_threshold:nan", "between 0 and 1"),
        ("garbage_collection_threshold:high", "a number"),
        ("expandable_segments:true", "True or False"),
        ("per_process_memory_fraction:2", "from 0 to 1"),
        ("roundup_power2_divisions:[256:4", "closing bracket"),
        ("roundup_power2_divisions:[255:4]", "a power of two"),
        ("max_split_size_mb=64", "name:value"),
    ],
)
def test_bad_options_are_refused_with_what_was_expected(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        Settings.parse(text)
    assert says in str(caught.value)
