"""CUDA's figures: which one is believed, what is limited, and what is put back. Over simulated cards."""

import importlib.util
import os
import random
from collections.abc import Callable

import pytest
import torch

from autofit.core.errors import UsageError
from autofit.core.measurement import Memory
from autofit.core.plan import Plan
from autofit.devices import host_memory
from autofit.devices.base import Counters, Device
from autofit.devices.cuda import CONTEXT_BYTES, Cuda, code_for, gpu_count, gpu_in_use, known_gpu_count
from autofit.probing.timing import run_window
from autofit.workloads.loss import LossRule
from autofit.workloads.step import Draft, StepBatch, TrainStep
from tests.devices import fake_nvml
from tests.devices.fake_torch import GIB, MIB, Card, Machine, install

Cards = Callable[..., Machine]


@pytest.fixture
def cards(monkeypatch: pytest.MonkeyPatch) -> Cards:
    """Makes the process see simulated CUDA cards, without NVML."""
    fake_nvml.install(monkeypatch, None)
    return lambda *cards: install(monkeypatch, *cards)


@pytest.fixture
def card(cards: Cards) -> Card:
    return cards().cards[0]


def metered(device: Device, run: Callable[[], None] = lambda: None) -> Memory:
    with device.meter(lambda: 123) as reading:
        run()
    assert reading.memory is not None
    return reading.memory


# What is held, and by whom


def test_capacity_and_availability_are_the_drivers(card: Card) -> None:
    card.others_bytes = 5 * GIB
    card.allocate(2 * GIB)
    device = Cuda()
    assert device.capacity_bytes() == 16 * GIB
    # Of the 5.4 GiB outside the allocator up to a context's size is taken to be this process's.
    assert device.available_bytes() == 16 * GIB - 5 * GIB - card.context_bytes + CONTEXT_BYTES


def test_alone_on_the_card_everything_is_available(card: Card) -> None:
    card.allocate(3 * GIB)
    assert Cuda().available_bytes() == 16 * GIB


def test_availability_stays_inside_the_capacity_while_others_release(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The two questions are asked one after the other: memory may become free in between."""
    card.others_bytes, device = GIB, Cuda()
    monkeypatch.setattr(device, "outside_bytes", lambda: 3 * GIB)
    assert device.available_bytes() == 16 * GIB


@pytest.mark.parametrize("others", [0, 100 * MIB, 40 * GIB])
@pytest.mark.fault("F40")
def test_without_nvml_what_is_outside_is_at_most_a_context(cards: Cards, others: int) -> None:
    card = cards(Card(total_bytes=80 * GIB, others_bytes=others)).cards[0]
    card.allocate(4 * GIB)
    memory = metered(Cuda())
    outside = min(card.context_bytes + others, CONTEXT_BYTES)
    assert memory.footprint_bytes == memory.judged_bytes == 4 * GIB + outside


def test_a_neighbour_that_comes_or_goes_changes_a_plan_by_less_than_a_context(cards: Cards) -> None:
    card = cards(Card(total_bytes=80 * GIB, others_bytes=20 * GIB)).cards[0]
    device = Cuda()
    with_one = metered(device).judged_bytes
    card.others_bytes = 0
    assert metered(device).judged_bytes == card.context_bytes
    card.others_bytes = 60 * GIB
    assert metered(device).judged_bytes == with_one == CONTEXT_BYTES


def test_figures_taken_a_moment_apart_never_make_less_than_nothing(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    card.allocate(GIB)
    monkeypatch.setattr(Cuda, "driver_info", lambda self: (16 * GIB, 16 * GIB))
    assert Cuda().outside_bytes() == 0


def nvml(monkeypatch: pytest.MonkeyPatch, *processes: tuple[int, int | None], **faults: str) -> fake_nvml.Driver:
    driver = fake_nvml.Driver(processes, **faults)
    fake_nvml.install(monkeypatch, driver)
    return driver


def test_nvml_tells_this_process_from_the_others(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    card.others_bytes = 9 * GIB
    card.allocate(2 * GIB)
    nvml(monkeypatch, (1, 9 * GIB), (os.getpid(), 2 * GIB + card.context_bytes))
    device = Cuda()
    assert device.outside_bytes() == card.context_bytes
    assert device.available_bytes() == 7 * GIB
    assert device.caveats() == ()


@pytest.mark.parametrize("told", [GIB, 15 * GIB, None], ids=["less than reserved", "more than used", "not available"])
@pytest.mark.fault("F39", "F40")
def test_a_figure_that_cannot_be_this_processs_is_not_believed(
    card: Card, monkeypatch: pytest.MonkeyPatch, told: int | None
) -> None:
    card.others_bytes = 9 * GIB
    card.allocate(2 * GIB)
    nvml(monkeypatch, (os.getpid(), told))
    assert Cuda().outside_bytes() == CONTEXT_BYTES


@pytest.mark.fault("F40")
def test_the_one_process_of_a_container_is_believed_as_far_as_a_context(
    card: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    card.others_bytes = 6 * GIB
    card.allocate(2 * GIB)
    nvml(monkeypatch, (4_000_000, 2 * GIB + card.context_bytes))
    assert Cuda().outside_bytes() == card.context_bytes
    nvml(monkeypatch, (4_000_000, 8 * GIB + card.context_bytes))  # a neighbour's memory, under the sandbox's number
    assert Cuda().outside_bytes() == CONTEXT_BYTES


def test_a_figure_once_believed_holds_when_nvml_falls_silent(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    card.others_bytes = 6 * GIB
    driver = nvml(monkeypatch, (os.getpid(), card.context_bytes))
    device = Cuda()
    assert device.outside_bytes() == card.context_bytes
    driver.processes = [(4_000_000, GIB), (4_000_001, GIB)]
    assert device.outside_bytes() == card.context_bytes


@pytest.mark.parametrize("fails", ["nvmlInit", "nvmlDeviceGetComputeRunningProcesses"])
@pytest.mark.fault("F40")
def test_nvml_that_fails_is_asked_once(card: Card, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    driver, device = nvml(monkeypatch, (os.getpid(), GIB), fails=fails), Cuda()
    assert device.outside_bytes() == card.context_bytes
    asked = len(driver.calls)
    assert asked
    assert metered(device).judged_bytes == card.context_bytes
    assert len(driver.calls) == asked


def test_rocm_is_not_asked_for_nvml(card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = nvml(monkeypatch, (os.getpid(), 0))
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert Cuda().outside_bytes() == card.context_bytes
    assert not driver.calls


@pytest.mark.fault("F40")
def test_who_cannot_be_told_apart_is_said(card: Card) -> None:
    assert Cuda().caveats() == ()
    card.others_bytes = 5 * GIB
    assert "3.891 GiB of the device seem to belong to other processes" in Cuda().caveats()[0]


# Unified memory


@pytest.fixture
def shared(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> Card:
    """A chip in the machine's 120 GiB: 110 are used by what was read from files, which the system would give up."""
    monkeypatch.setattr(host_memory, "available", lambda: 100 * GIB)
    monkeypatch.setattr(host_memory, "capacity", lambda: 120 * GIB)
    return cards(Card(total_bytes=120 * GIB, integrated=True, others_bytes=110 * GIB, context_bytes=GIB)).cards[0]


@pytest.mark.fault("F39")
def test_where_memory_is_shared_the_system_says_what_is_available(shared: Card) -> None:
    assert shared.free_bytes() == 9 * GIB
    assert Cuda().capacity_bytes() == 120 * GIB
    assert Cuda().available_bytes() == 100 * GIB + CONTEXT_BYTES
    assert Cuda().caveats() == ()


def test_where_memory_is_shared_the_context_is_the_same_whatever_was_read(shared: Card) -> None:
    shared.allocate(2 * GIB)
    before = metered(Cuda()).judged_bytes
    shared.others_bytes = 0
    assert metered(Cuda()).judged_bytes == before == 2 * GIB + CONTEXT_BYTES


@pytest.mark.fault("F39")
def test_where_memory_is_shared_a_container_has_its_own_limit(shared: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "capacity", lambda: 32 * GIB)
    monkeypatch.setattr(host_memory, "available", lambda: 40 * GIB)
    assert Cuda().capacity_bytes() == Cuda().available_bytes() == 32 * GIB


@pytest.mark.fault("F39")
def test_where_memory_is_shared_and_the_system_says_nothing_the_driver_is_asked(
    shared: Card, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_memory, "available", lambda: None)
    assert Cuda().available_bytes() == 9 * GIB + CONTEXT_BYTES


@pytest.mark.fault("F39")
def test_where_memory_is_shared_nvml_is_not_asked(shared: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    driver = nvml(monkeypatch, (os.getpid(), 30 * MIB))
    assert Cuda().outside_bytes() == CONTEXT_BYTES
    assert not driver.calls


# The budget and its limit


@pytest.mark.parametrize("built", [16 * GIB, 15 * GIB, 17 * GIB + 1], ids=["same", "less", "more"])
@pytest.mark.parametrize("backend", ["native", "cudaMallocAsync"])
def test_the_limit_is_the_budget_less_what_is_outside(cards: Cards, built: int, backend: str) -> None:
    card = cards(Card(built_bytes=built, backend=backend)).cards[0]
    with Cuda().limit(6 * GIB, lambda: 0):
        assert card.limit_bytes is not None
        assert 0 <= 6 * GIB - card.context_bytes - card.limit_bytes <= 1
        with pytest.raises(torch.OutOfMemoryError):
            card.allocate(6 * GIB - card.context_bytes + 1)
        card.allocate(6 * GIB - card.context_bytes - 1)
    assert card.fraction() == 1.0
    card.allocate(2 * GIB)


def test_no_budget_gives_a_limit_above_it(cards: Cards) -> None:
    draw = random.Random(0)
    for _ in range(500):
        total = draw.randrange(2 * GIB, 192 * GIB)
        card = cards(Card(total_bytes=total)).cards[0]
        budget = draw.randrange(total)
        with Cuda().limit(budget, lambda: 0):
            assert card.limit_bytes is None or card.limit_bytes + card.context_bytes <= max(budget, card.context_bytes)


def test_a_budget_below_the_context_leaves_nothing(card: Card) -> None:
    with Cuda().limit(100 * MIB, lambda: 0), pytest.raises(torch.OutOfMemoryError):
        card.allocate(1)


def test_a_lower_limit_of_the_users_stays_and_comes_back_to_the_byte(cards: Cards) -> None:
    draw = random.Random(1)
    for _ in range(500):
        card = cards(Card(total_bytes=draw.randrange(2 * GIB, 192 * GIB))).cards[0]
        card.set_fraction(draw.uniform(0.01, 0.3))
        kept = card.limit_bytes
        assert kept is not None
        with Cuda().limit(card.total_bytes, lambda: 0):
            assert card.limit_bytes is not None
            assert kept - 1 <= card.limit_bytes <= kept
        assert card.limit_bytes == kept


def test_the_limit_is_taken_back_when_a_step_fails(card: Card) -> None:
    card.set_fraction(0.5)
    with pytest.raises(KeyError), Cuda().limit(GIB, lambda: 0):
        raise KeyError
    assert card.fraction() == 0.5


def test_a_limit_of_the_users_is_part_of_what_is_available(card: Card) -> None:
    card.set_fraction(0.25)
    assert Cuda().available_bytes() == 4 * GIB + card.context_bytes
    card.set_fraction(0.999)
    card.others_bytes = 8 * GIB
    assert Cuda().available_bytes() < 10 * GIB


# Metering


def test_peaks_include_what_was_reserved_before_and_begin_anew(card: Card) -> None:
    device = Cuda()
    with card.holding(9 * GIB):
        pass
    device.release()
    card.allocate(2 * GIB)
    card.allocate(GIB)
    card.give(GIB)

    def step() -> None:
        with card.holding(4 * GIB):
            pass

    memory = metered(device, step)
    assert memory.allocated_bytes == 6 * GIB
    assert memory.reserved_bytes == 6 * GIB
    assert memory.judged_bytes == memory.footprint_bytes == 6 * GIB + card.context_bytes
    assert memory.static_bytes == 123
    quiet = metered(device)
    assert quiet.allocated_bytes == 2 * GIB
    assert quiet.reserved_bytes == 6 * GIB


def test_what_grows_outside_the_allocator_while_metering_counts(card: Card) -> None:
    def step() -> None:
        card.context_bytes += 300 * MIB

    before = metered(Cuda()).judged_bytes
    assert metered(Cuda(), step).judged_bytes == before + 300 * MIB


def test_a_step_that_empties_the_cache_does_not_hide_what_it_reserved(card: Card) -> None:
    device = Cuda()

    def step() -> None:
        with card.holding(5 * GIB):
            pass
        device.release()

    assert metered(device, step).reserved_bytes == 5 * GIB


def test_retries_and_hidden_failures_of_the_stretch_are_counted(card: Card) -> None:
    device = Cuda()

    def tight() -> None:
        with card.holding(9 * GIB):
            pass
        card.others_bytes = 15 * GIB
        with pytest.raises(torch.OutOfMemoryError):  # after it was tried again with the cache flushed
            card.allocate(10 * GIB)
        card.others_bytes = 0

    tight()
    memory = metered(device, tight)
    assert (memory.allocator_retries, memory.swallowed_ooms) == (1, 1)
    assert device.counters() == Counters(ooms=2, retries=2)
    assert metered(device).swallowed_ooms == 0


def test_a_device_not_yet_used_has_counted_nothing(card: Card) -> None:
    assert Cuda().counters() == Counters(0, 0)


def test_the_reading_waits_for_the_device(cards: Cards) -> None:
    machine = cards()
    with Cuda().meter(lambda: 0):
        machine.log.clear()
    assert machine.log == ["synchronize cuda:0"]


def test_a_poisoned_device_says_so_at_every_edge(card: Card) -> None:
    device = Cuda()
    card.poisoned = True
    for act in (device.synchronize, device.release, lambda: metered(device), lambda: device.timed(lambda: None)):
        with pytest.raises(torch.AcceleratorError, match="illegal memory access"):
            act()
    assert device.counters() == Counters(0, 0)  # asked while a failure is handled


def test_work_is_timed_by_events_on_the_devices_own_stream(cards: Cards) -> None:
    machine = cards(Card(), Card())

    def work() -> str:
        machine.log.append(f"work on {machine.current}")
        return "done"

    assert Cuda(1).timed(work) == ("done", 1.5)
    assert machine.log == [
        *("synchronize cuda:1", "record stream of cuda:1", "work on 0"),
        *("record stream of cuda:1", "synchronize cuda:1"),
    ]


def test_the_steps_of_a_window_run_between_two_events_with_nothing_in_between(cards: Cards) -> None:
    machine = cards()
    model = torch.nn.Linear(1, 1)

    def loss(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
        machine.log.append("step")
        loss: torch.Tensor = model(batch).mean()
        return loss

    draft = Draft(model, LossRule("l", loss, False, ""), torch.optim.SGD(model.parameters()), torch.device("cpu"))
    ran = run_window(TrainStep(Plan(), draft), lambda number: StepBatch.of([torch.ones(2, 1)]), 3, Cuda(0))
    edge = "record stream of cuda:0"
    assert machine.log == ["synchronize cuda:0", edge, *["step"] * 3, edge, "synchronize cuda:0"]
    assert (ran.steps, ran.seconds) == (3, 1.5)


def test_released_memory_is_what_the_cache_and_cublas_held(cards: Cards) -> None:
    machine = cards()
    card = machine.cards[0]
    with card.holding(GIB):
        pass
    Cuda().release()
    assert card.reserved == 0
    assert machine.log == ["cublas", "empty"]


def test_a_torch_that_cannot_clear_cublas_still_releases(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = cards()
    monkeypatch.delattr(torch._C, "_cuda_clearCublasWorkspaces")
    Cuda().release()
    assert machine.log == ["empty"]


# Which device


def test_everything_is_of_the_device_that_was_chosen(cards: Cards) -> None:
    machine = cards(Card(), Card(total_bytes=40 * GIB, capability=(7, 5)))
    small, large = machine.cards
    small.allocate(GIB)
    device = Cuda(1)
    assert (device.name(), device.capacity_bytes()) == ("Card 1", 40 * GIB)
    assert metered(device, lambda: large.allocate(3 * GIB)).reserved_bytes == 3 * GIB
    with device.limit(10 * GIB, lambda: 0):
        assert small.limit_bytes is None
        assert large.limit_bytes is not None
    assert "bf16" not in device.capabilities()
    assert machine.current == 0


def test_the_current_device_is_meant_as_it_was_when_first_asked(cards: Cards) -> None:
    machine = cards(Card(), Card())
    machine.current = 1
    device = Cuda()
    assert device.torch_device == torch.device("cuda", 1)
    machine.current = 0
    assert device.torch_device == torch.device("cuda", 1)


def test_making_a_device_starts_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def start() -> int:
        raise AssertionError("a context costs half a GiB")

    monkeypatch.setattr(torch.accelerator, "current_device_index", start)
    Cuda()


# What it can do, and by which versions


@pytest.mark.parametrize(
    ("capability", "hip", "expected"),
    [
        ((9, 0), None, {"bf16", "tf32"}),
        ((8, 0), None, {"bf16", "tf32"}),
        ((7, 5), None, set()),
        ((9, 4), "7.0", {"bf16"}),
    ],
    ids=["hopper", "ampere", "turing", "rocm"],
)
def test_capabilities_are_the_generations(
    cards: Cards, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], hip: str | None, expected: set[str]
) -> None:
    cards(Card(capability=capability))
    monkeypatch.setattr(torch.version, "hip", hip)
    everywhere = {"fp16", "channels_last", "foreach", "fused", "own_memory", "tuned kernels", "cuda graphs"}
    assert Cuda().capabilities() - {"compiled code"} == everywhere | expected


def test_code_is_compiled_where_triton_is_installed(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    cards(Card(capability=(9, 0)))
    for found in (None, object()):
        monkeypatch.setattr(importlib.util, "find_spec", lambda name, found=found: found)
        assert ("compiled code" in Cuda().capabilities()) == (found is not None)


def test_an_integrated_chip_has_no_memory_of_its_own(cards: Cards) -> None:
    cards(Card(integrated=True))
    assert "own_memory" not in Cuda().capabilities()


def test_versions_name_the_runtime(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    cards()
    assert Cuda().versions()["cuda"] == "13.0"
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert Cuda().versions()["rocm"] == "7.0"
    assert "cuda" not in Cuda().versions()
    assert "allocator" not in Cuda().versions()


def test_the_driver_is_named_where_nvml_reports_it(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    cards()
    fake_nvml.install(monkeypatch, fake_nvml.Driver([]))
    assert Cuda().versions()["driver"] == "570.124.06"
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert "driver" not in Cuda().versions()


def test_cudnn_is_named_where_there_is_one(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    cards()
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    assert Cuda().versions()["cudnn"] == "91002"


@pytest.mark.parametrize(
    ("architectures", "capability", "expected"),
    [
        (["sm_80", "sm_90"], (8, 6), "machine code"),
        (["sm_86"], (8, 0), ""),
        (["sm_80", "compute_80"], (9, 0), "ptx"),
        (["sm_80", "sm_90a"], (9, 0), "machine code"),
        (["sm_90a", "compute_90a"], (10, 0), ""),
        (["sm_100f", "compute_100f"], (10, 3), "machine code"),
        (["sm_100f", "compute_100f"], (12, 0), ""),
        (["sm_120", "compute_120"], (12, 1), "machine code"),
        (["gfx942"], (9, 4), ""),
        ([], (9, 0), ""),
    ],
)
def test_code_runs_on_later_cards_as_nvidia_says(
    architectures: list[str], capability: tuple[int, int], expected: str
) -> None:
    assert code_for(architectures, capability) == expected


@pytest.mark.parametrize(
    ("architectures", "effect"),
    [(["sm_80", "sm_90"], ""), (["compute_80"], "compiles each kernel"), (["sm_100"], "cannot use")],
)
def test_a_build_without_kernels_for_the_card_is_said(
    cards: Cards, monkeypatch: pytest.MonkeyPatch, architectures: list[str], effect: str
) -> None:
    cards(Card(capability=(9, 0)))
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: architectures)
    found = Cuda().misfit()
    assert (found is None) is (not effect)
    assert found is None or (effect in found.what and "compute capability 9.0" in found.what)


@pytest.mark.parametrize(
    ("built", "available", "told"),
    [
        ("13.0", False, True),
        ("12.8", False, False),
        ("13.0", True, False),
        (None, False, False),
        ("14.0", False, False),
    ],
)
def test_a_driver_that_is_too_old_is_said_where_no_card_can_be_used(
    cards: Cards, monkeypatch: pytest.MonkeyPatch, built: str | None, available: bool, told: bool
) -> None:
    cards(Card(capability=(9, 0)))
    fake_nvml.install(monkeypatch, fake_nvml.Driver([]))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: available)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_90"])
    monkeypatch.setattr(torch.version, "cuda", built)
    found = Cuda().misfit()
    assert (found is not None) is told
    if found is not None:
        assert "driver 580 or newer, but finds 570.124.06" in found.what


def test_nothing_is_said_of_a_machine_without_a_driver(cards: Cards, monkeypatch: pytest.MonkeyPatch) -> None:
    cards()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert Cuda().misfit() is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"expandable_segments": True}, "expandable_segments:True"),
        ({"max_split_size": 64 * MIB}, "max_split_size_mb:64"),
        ({"garbage_collection_threshold": 0.8}, "garbage_collection_threshold:0.8"),
        ({"roundup_power2_divisions": {"1": 0, "2": 8}}, "roundup_power2_divisions:[1:0,2:8]"),
    ],
)
def test_the_settings_named_are_those_in_force(
    card: Card, monkeypatch: pytest.MonkeyPatch, settings: dict[str, object], expected: str
) -> None:
    """Not those of a variable that may not be the one that won, or that a call has overruled."""
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:20")
    card.settings = settings
    assert Cuda().versions()["allocator"] == expected


# Allocators that account otherwise, or not at all


def test_cudas_own_pools_are_metered_limited_and_their_silence_is_said(cards: Cards) -> None:
    card = cards(Card(backend="cudaMallocAsync")).cards[0]
    device = Cuda()
    assert device.versions()["allocator"] == "cudaMallocAsync"
    assert device.available_bytes() == 16 * GIB
    assert "cudaMallocAsync: it counts no retries" in device.caveats()[0]
    assert device.budget("4GiB", varies=False).memory_bytes == 4 * GIB
    with device.limit(4 * GIB, lambda: 0):
        pass
    assert card.limit_bytes == card.total_bytes


def test_an_allocator_that_keeps_no_account_is_refused(cards: Cards) -> None:
    cards(Card(backend="pluggable"))
    with pytest.raises(UsageError, match=r"found the CUDA allocator 'pluggable'; expected torch's own.*Tune without"):
        Cuda().budget(None, varies=False)


@pytest.mark.parametrize("name", ["PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"])
def test_torch_without_its_cache_is_refused(card: Card, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    assert Cuda().budget(None, varies=False).memory_bytes > 0
    monkeypatch.setenv(name, "0")
    with pytest.raises(UsageError, match=f"{name} is set: .* Unset it"):
        Cuda().budget(None, varies=False)


# How memory is accounted for, which estimates imitate


def test_the_account_has_the_context_and_the_allocators_options(cards: Cards) -> None:
    card = cards(Card(settings={"max_split_size": 64 * MIB, "expandable_segments": True})).cards[0]
    account = Cuda().account()
    assert account is not None
    assert (account.allocator, account.outside_bytes) == ("caching", card.context_bytes)
    assert set(account.settings.split(",")) == {"max_split_size_mb:64", "expandable_segments:True"}


@pytest.mark.parametrize("foreign", ["memory pools", "ROCm"])
def test_memory_that_a_trace_does_not_know_is_not_estimated(
    foreign: str, cards: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    cards(Card(backend="cudaMallocAsync" if foreign == "memory pools" else "native"))
    if foreign == "ROCm":
        monkeypatch.setattr(torch.version, "hip", "7.0")
    assert Cuda().account() is None


# The number of GPUs


def test_the_known_number_is_the_answer_until_the_context_is_left() -> None:
    before = torch.cuda.is_available(), torch.cuda.device_count()
    with known_gpu_count(3):
        assert (torch.cuda.is_available(), gpu_count()) == (True, 3)
    with known_gpu_count(0):
        assert (torch.cuda.is_available(), gpu_count()) == (False, 0)
    assert (torch.cuda.is_available(), gpu_count()) == before


def test_a_gpu_is_in_use_once_torch_has_started_on_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: True)
    assert gpu_in_use()
