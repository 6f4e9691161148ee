"""What the tests of the CUDA path share: they run on a phantom GPU (tests/phantom) and on a real one alike.

Markers: `cuda` is on all of them; `real_gpu` is for those that need true values or times, `phantom` for those that
inject faults or need the phantom's known figures.
"""

import gc
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from autofit import devices
from autofit.devices.base import Device
from autofit.gates.check import GradientCheck
from tests.phantom.phantom import Phantom, present

HERE = Path(__file__).parent
MARKERS = (
    "cuda: needs a CUDA device, real or phantom",
    "real_gpu: needs true values or times; skipped on a phantom GPU",
    "phantom: injects faults, or knows the phantom's figures; skipped on a real GPU",
)


def pytest_configure(config: pytest.Config) -> None:
    for line in MARKERS:
        config.addinivalue_line("markers", line)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker("cuda")
            if reason := why_not(item):
                item.add_marker(pytest.mark.skip(reason=reason))


def why_not(item: pytest.Item) -> str:
    """Returns why a test cannot run here, or "" when it can."""
    if not torch.cuda.is_available():
        return "torch sees no CUDA device; scripts/test-cuda-phantom brings a phantom one"
    if present() and item.get_closest_marker("real_gpu"):
        return "needs true values or times: a phantom's kernels do nothing"
    if not present() and item.get_closest_marker("phantom"):
        return "injects faults, which only a phantom GPU can have"
    return ""


@pytest.fixture(scope="session", autouse=True)
def libraries_are_loaded() -> None:
    """Opens a real device and loads cuBLAS and cuDNN: they keep descriptors until the process ends."""
    if torch.cuda.is_available() and not present():
        x = torch.ones(1, 8, 8, 8, device="cuda")
        torch.nn.functional.conv2d(x @ x, x).sum().item()


@pytest.fixture(autouse=True)
def nothing_left(heap_is_frozen: None) -> Iterator[None]:
    """Checks that a test leaves no memory allocated, and the allocator's limit where it was."""
    before, limit = torch.cuda.memory_allocated(), fraction()
    yield
    deadline = time.monotonic() + 2.0  # autograd's thread lets go of its last node a moment after `backward` returned
    while (more := allocated_after_tidying() - before) > 0 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert more <= 0, f"{more} bytes more are allocated than before this test: {tensors_on_device()}"
    assert fraction() == limit, f"the memory fraction was {limit} before this test and is {fraction()}"


def allocated_after_tidying() -> int:
    """Gives back what is garbage, and what libraries and the allocator keep; returns the bytes that tensors hold."""
    gc.collect()
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    return torch.cuda.memory_allocated()


def tensors_on_device() -> list[tuple[int, ...]]:
    """Returns the shapes of the tensors that Python holds there; those that only C++ holds are not among them."""
    gc.unfreeze()
    return [tuple(each.shape) for each in gc.get_objects() if issubclass(type(each), torch.Tensor) and each.is_cuda]


def fraction() -> float:
    """Returns the memory fraction; the allocator keeps it in bytes, so the last places of what is read may differ."""
    return round(torch.cuda.get_per_process_memory_fraction(), 6)


@pytest.fixture
def device() -> Device:
    """The CUDA device, as a search would open it."""
    return devices.choose("cuda")


@pytest.fixture
def phantom() -> Iterator[Phantom]:
    """The control of the phantom GPU; its faults are removed when the test ends."""
    control = Phantom()
    yield control
    control.reset()


@pytest.fixture
def card(phantom: Phantom) -> Iterator[Callable[[int], None]]:
    """Makes the phantom a card of so many bytes."""
    before = phantom.total_bytes

    def resize(total_bytes: int) -> None:
        allocated_after_tidying()
        phantom.set_total(total_bytes)
        torch.cuda.set_per_process_memory_fraction(1.0)  # kept in bytes of the former card

    yield resize
    phantom.reset()
    resize(before)


@pytest.fixture
def cap() -> Iterator[Callable[[int], None]]:
    """Lets this process have at most so many bytes in the caching allocator, as a user's own limit does."""
    before = torch.cuda.get_per_process_memory_fraction()

    def limit(most_bytes: int) -> None:
        torch.cuda.set_per_process_memory_fraction(most_bytes / torch.cuda.get_device_properties().total_memory)

    yield limit
    torch.cuda.set_per_process_memory_fraction(before)


@pytest.fixture
def trusted_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes checks pass on a phantom, whose kernels compute nothing; a real GPU has to pass them."""
    if present():
        monkeypatch.setattr(GradientCheck, "run", lambda _: None)
