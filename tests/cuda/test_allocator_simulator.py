"""The simulated caching allocator against the real one: the same streams of requests, the same segments and peaks.

AUTOFIT_ALLOCATOR_STREAMS says how many streams are compared; without it about 200, for all of the milestone 1,000.
"""

import os
from collections.abc import Iterator

import pytest
import torch

from autofit.core.errors import UsageError
from autofit.memory.allocator.settings import Settings
from tests.cuda.allocator_streams import OPTION_SETS, OptionSet, compare, operations
from tests.phantom.phantom import Phantom

pytestmark = pytest.mark.phantom  # limits the free memory, and needs addresses that rise
STREAMS = int(os.environ.get("AUTOFIT_ALLOCATOR_STREAMS") or 200)
SEEDS = range(-(-STREAMS // len(OPTION_SETS)))
OPERATIONS = 300


@pytest.mark.parametrize("options", OPTION_SETS, ids=lambda options: options.name)
def test_simulated_and_real_allocator_agree_after_every_operation(options: OptionSet, phantom: Phantom) -> None:
    found = [compare(options, operations(seed, OPERATIONS), phantom) for seed in SEEDS]
    assert not [difference for difference in found if difference]


TEXTS = [
    "",
    " max_split_size_mb : 64 , expandable_segments:True,",
    "max_split_size_mb:20",
    "large_segment_size_mb:64,max_split_size_mb:64,max_non_split_rounding_mb:64",
    "garbage_collection_threshold:0.75",
    "roundup_power2_divisions:8",
    "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    "roundup_power2_divisions:[1:4,4:2]",
    "roundup_power2_divisions:[64:0,>:16]",
    "roundup_power2_divisions:[>:4]",
    "roundup_power2_divisions:[131072:4]",
    "roundup_power2_divisions:[]",
    "backend:native,pinned_num_register_threads:8",
]


@pytest.fixture
def _settings_kept() -> Iterator[None]:
    yield
    torch._C._accelerator_setAllocatorSettings(OPTION_SETS[0].text)


@pytest.mark.usefixtures("_settings_kept")
@pytest.mark.parametrize("text", TEXTS)
def test_options_are_read_as_torch_reads_them(text: str) -> None:
    torch._C._accelerator_setAllocatorSettings(OPTION_SETS[0].text)
    torch._C._accelerator_setAllocatorSettings(text)
    real = torch.cuda.memory._snapshot()["allocator_settings"]
    settings = Settings.parse(text)
    assert real["max_split_size"] == (-1 if settings.max_split_bytes is None else settings.max_split_bytes)
    assert real["garbage_collection_threshold"] == settings.gc_threshold_ratio
    assert real["expandable_segments"] == settings.expandable_segments
    assert list(real["roundup_power2_divisions"].values()) == list(settings.divisions)


REFUSED = [
    "max_split_size_mb:19",
    "max_split_size_mb:abc",
    "max_split_size_mb:32,large_segment_size_mb:64",
    "max_non_split_rounding_mb:19",
    "large_segment_size_mb:10",
    "garbage_collection_threshold:1.0",
    "garbage_collection_threshold:0",
    "expandable_segments:true",
    "per_process_memory_fraction:1.5",
    "roundup_power2_divisions:3",
    "roundup_power2_divisions:0",
    "roundup_power2_divisions:[255:4]",
    "roundup_power2_divisions:[256:3]",
    "roundup_power2_divisions:[256:4",
    "backend:foo",
    "max_split_size_mb=64",
    "max_split_size_mb",
    "no_such_option:1",
]


@pytest.mark.usefixtures("_settings_kept")
@pytest.mark.parametrize("text", REFUSED)
def test_what_torch_refuses_is_refused(text: str) -> None:
    with pytest.raises((ValueError, RuntimeError)):
        torch._C._accelerator_setAllocatorSettings(text)
    with pytest.raises(UsageError):
        Settings.parse(text)
