"""What a trace on this device says of a plan's memory, against what the plan then takes."""

import pytest
import torch

from autofit import devices, estimators
from autofit.core.briefing import Options
from autofit.core.space import SearchSpace
from autofit.core.trial import Purpose
from autofit.memory.allocator.settings import Settings
from autofit.probing.local_bench import LocalBench
from tests.cuda.device_process import Process
from tests.cuda.scaled import MAKERS
from tests.cuda.searches import MIB, quick

OPTIONS = Options(strategies=("batching", "precision"), enforce=True)

pytestmark = pytest.mark.usefixtures("trusted_values")


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    quick(monkeypatch)


@pytest.mark.parametrize("name", MAKERS)
def test_the_peaks_are_estimated_before_anything_runs(name: str) -> None:
    with LocalBench(MAKERS[name](4), devices.choose("cuda"), OPTIONS) as bench:
        account, space = bench.briefing.account, SearchSpace(bench.briefing.space)
        assert account is not None
        for plan in (space.baseline, space.at(space.baseline.combination.replace(precision="bf16"), space.sizes[1])):
            before = torch.cuda.memory_allocated()
            estimated = estimators.memory_use(bench.trace(plan), account)
            assert torch.cuda.memory_allocated() == before
            measured = bench.evaluate(plan, Purpose.PROBE).measurement
            assert measured is not None
            memory = measured.memory
            assert estimated.allocated_bytes == pytest.approx(memory.allocated_bytes, rel=0.01)
            assert estimated.reserved_bytes == pytest.approx(memory.reserved_bytes, rel=0.04, abs=4 * MIB)
            assert estimated.judged_bytes == pytest.approx(memory.judged_bytes, rel=0.04, abs=4 * MIB)


@pytest.mark.parametrize(
    "options",
    [
        "",
        "expandable_segments:True",
        "max_split_size_mb:64,garbage_collection_threshold:0.8",
        "roundup_power2_divisions:[256:1,512:2,1024:4,>:8]",
    ],
)
def test_the_allocators_options_are_those_that_it_really_has(options: str) -> None:
    with Process(PYTORCH_ALLOC_CONF=options) as process:
        told = process.ask("read")["account"]
    assert told["allocator"] == "caching"
    assert Settings.parse(told["settings"]) == Settings.parse(options)
