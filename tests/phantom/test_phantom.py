"""What the phantom GPU imitates, and where it stops. Runs under the phantom only (run.py)."""

import ctypes
import itertools
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.phantom.phantom import Phantom, present

MIB = 2**20
ILLEGAL = "an illegal memory access was encountered"

pytestmark = pytest.mark.skipif(not present(), reason="needs the phantom GPU: start with tests/phantom/run.py")


@pytest.fixture
def phantom() -> Iterator[Phantom]:
    made = Phantom()
    made.reset()
    release()
    yield made
    made.reset()
    release()


def release() -> None:
    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()


def runtime() -> ctypes.CDLL:
    return ctypes.CDLL(None)


def environment(variables: dict[str, object]) -> dict[str, str]:
    return {**os.environ, **{name: str(value) for name, value in variables.items()}}


def python(code: str, **variables: object) -> subprocess.CompletedProcess[str]:
    """Runs the code in a fresh process that has torch."""
    return run(f"import ctypes, os, torch\n{code}", variables)


CALLS = """
import ctypes
cuda = ctypes.CDLL(None)
def malloc(size):
    return cuda.cudaMalloc(ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(size))
def free_mib():
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    assert cuda.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total)) == 0
    return free.value >> 20
"""


def calls(code: str, **variables: object) -> subprocess.CompletedProcess[str]:
    """Runs the code, which calls CUDA by itself, in a fresh process without torch: that starts at once."""
    return run(CALLS + code, variables)


def run(code: str, variables: dict[str, object]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", code]
    settings = environment(variables)
    return subprocess.run(command, env=settings, capture_output=True, text=True, timeout=120, check=False)


def free_mib() -> int:
    return torch.cuda.mem_get_info()[0] // MIB


# ---- bytes ----


def test_copies_hold_true_bytes(phantom: Phantom) -> None:
    host = torch.arange(3_000_001)
    there = host.cuda()
    assert torch.equal(there.cpu(), host)
    assert torch.equal(there.clone().cpu(), host)
    assert torch.equal(there[5:100_005].clone().cpu(), host[5:100_005])


def test_pinned_memory_is_known_as_pinned_and_copied(phantom: Phantom) -> None:
    pinned = torch.arange(1000).pin_memory()
    assert pinned.is_pinned()
    assert not torch.arange(1000).is_pinned()
    assert torch.equal(pinned.to("cuda", non_blocking=True).cpu(), torch.arange(1000))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool])
def test_fills_are_done(phantom: Phantom, dtype: torch.dtype) -> None:
    tensor = torch.full((1000,), 1, device="cuda", dtype=dtype)
    assert torch.equal(tensor.cpu(), torch.ones(1000, dtype=dtype))
    assert not tensor.zero_().cpu().any()


def test_zeros_are_zeros_where_other_bytes_were(phantom: Phantom) -> None:
    size = 8 * MIB
    address = torch.ones(size, dtype=torch.uint8).cuda().data_ptr()
    zeros = torch.zeros(size, dtype=torch.uint8, device="cuda")
    assert zeros.data_ptr() == address
    assert not zeros.cpu().any()


def test_a_copy_of_what_was_never_written_is_zeros_and_costs_nothing(phantom: Phantom) -> None:
    size = 4096 * MIB
    source, target = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    for tensor, at in ((target, 5), (target, size - 1), (source, size // 2 + 1)):
        tensor[at : at + 1].copy_(torch.ones(1, dtype=torch.uint8))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    target.copy_(source)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 10_000  # each page that is read is one
    assert (target[5].item(), target[-1].item(), target[size // 2 + 1].item()) == (0, 0, 1)


def test_other_kernels_do_nothing(phantom: Phantom) -> None:
    tensor = torch.arange(10.0).cuda()
    tensor.mul_(2)
    assert torch.equal(tensor.cpu(), torch.arange(10.0))


def test_selections_are_empty(phantom: Phantom) -> None:
    tensor = torch.arange(1000.0).cuda()
    assert tensor[tensor > 3].shape == (0,)
    assert torch.nonzero(tensor).shape == (0, 1)


def resident_mib() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // MIB


def test_host_memory_is_only_taken_by_what_is_written(phantom: Phantom) -> None:
    before = resident_mib()
    tensor = torch.zeros(4096 * MIB, dtype=torch.uint8, device="cuda")
    other = tensor.clone()
    assert phantom.used_bytes == 8192 * MIB
    assert resident_mib() - before < 100
    other[: 256 * MIB].copy_(torch.ones(256 * MIB, dtype=torch.uint8))
    assert resident_mib() - before > 200
    del tensor, other
    release()
    assert resident_mib() - before < 150  # the host's own copy may be kept by malloc


# ---- memory ----


def test_the_real_allocator_runs_out(phantom: Phantom) -> None:
    before = torch.cuda.memory_stats().get("num_ooms", 0)
    with pytest.raises(torch.OutOfMemoryError, match=r"CUDA out of memory\. Tried to allocate"):
        torch.empty(phantom.total_bytes, dtype=torch.uint8, device="cuda")
    assert torch.cuda.memory_stats()["num_ooms"] == before + 1


def test_free_memory_follows_the_segments(phantom: Phantom) -> None:
    before = free_mib()
    tensor = torch.empty(100 * MIB, dtype=torch.uint8, device="cuda")
    assert free_mib() == before - 100
    assert phantom.used_bytes == 100 * MIB == torch.cuda.memory_reserved()
    del tensor
    assert free_mib() == before - 100  # cached
    release()
    assert free_mib() == before
    assert phantom.used_bytes == 0


def test_the_memory_fraction_is_enforced(phantom: Phantom) -> None:
    torch.cuda.set_per_process_memory_fraction(0.01)
    try:
        with pytest.raises(torch.OutOfMemoryError, match="MiB allowed"):
            torch.empty(phantom.total_bytes // 50, dtype=torch.uint8, device="cuda")
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_the_context_is_lost_by_the_first_touch() -> None:
    done = calls(
        "free = cuda.phantom_free_bytes; free.restype = ctypes.c_uint64\n"
        "cuda.cudaGetDeviceCount(ctypes.byref(ctypes.c_int())); print(free() >> 20)\n"
        "cuda.cudaDeviceSynchronize(); print(free() >> 20)",
        PHANTOM_TOTAL_MIB=4000,
        PHANTOM_CONTEXT_MIB=300,
    )
    assert done.stdout.split() == ["4000", "3700"], done.stderr


def test_the_capacity_can_be_changed_while_nothing_is_allocated(phantom: Phantom) -> None:
    before = phantom.total_bytes
    tensor = torch.empty(1, device="cuda")
    with pytest.raises(ValueError, match="2097152 bytes allocated"):
        phantom.set_total(2048 * MIB)
    del tensor
    release()
    try:
        phantom.set_total(2048 * MIB)
        assert torch.cuda.mem_get_info()[1] == 2048 * MIB
        with pytest.raises(torch.OutOfMemoryError):
            torch.empty(2048 * MIB, dtype=torch.uint8, device="cuda")
    finally:
        phantom.set_total(before)
    with pytest.raises(ValueError, match="PHANTOM_CONTEXT_MIB"):
        phantom.set_total(MIB)


def test_expandable_segments() -> None:
    done = python(
        "from tests.phantom.phantom import Phantom\n"
        "host = torch.arange(10_000_000); used = lambda: Phantom().used_bytes\n"
        "parts = [host.cuda() for _ in range(4)]\n"
        "print(all(torch.equal(part.cpu(), host) for part in parts), used() == torch.cuda.memory_reserved())\n"
        "kept = parts.pop(0); del parts; torch.cuda.empty_cache()\n"
        "print(torch.equal(kept.cpu(), host), used() == torch.cuda.memory_reserved() < 100 << 20)\n"
        "print([segment['is_expandable'] for segment in torch.cuda.memory_snapshot()])\n"
        "del kept; torch.cuda.empty_cache(); print(Phantom().used_bytes)",
        PYTORCH_ALLOC_CONF="expandable_segments:True",
    )
    assert done.stdout.splitlines() == ["True True", "True True", "[True]", "0"], done.stderr


def test_the_device_is_what_the_variables_say() -> None:
    told = (
        "q = torch.cuda.get_device_properties(0)\n"
        "print(q.name, (q.major, q.minor), q.total_memory >> 20, bool(q.is_integrated))"
    )
    done = python(told, PHANTOM_NAME="Some card", PHANTOM_CAPABILITY="9.0", PHANTOM_TOTAL_MIB=1234, PHANTOM_UNIFIED=1)
    assert done.stdout.strip() == "Some card (9, 0) 1234 True", done.stderr


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PHANTOM_TOTAL_MIB", "80G"),
        ("PHANTOM_TOTAL_MIB", "-5"),
        ("PHANTOM_TOTAL_MIB", "300"),
        ("PHANTOM_CONTEXT_MIB", "half"),
        ("PHANTOM_CAPABILITY", "8"),
        ("PHANTOM_UNIFIED", "yes"),
        ("PHANTOM_NVML", "present"),
    ],
)
def test_a_wrong_setting_ends_the_process_with_one_line(name: str, value: str) -> None:
    done = calls("free_mib()", **{name: value})
    assert done.returncode == 2
    assert done.stderr.startswith(f"phantom: {name} is ")
    assert "expected" in done.stderr
    assert done.stderr.count("\n") == 1


# ---- several processes ----


def test_two_processes_share_one_device(tmp_path: Path) -> None:
    shared = {"PHANTOM_DEVICE": tmp_path / "device", "PHANTOM_TOTAL_MIB": 8000, "PHANTOM_CONTEXT_MIB": 100}
    command = [sys.executable, "-c", f"{CALLS}malloc(1 << 30); print('ready', flush=True); input()"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment(shared), text=True, stdin=pipe, stdout=pipe) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "ready\n"
        assert calls("print(free_mib())", **shared).stdout.split() == [str(8000 - 2 * 100 - 1024)]
        refused = python("torch.empty(7 << 30, dtype=torch.uint8, device='cuda')", **shared, PHANTOM_NVML="per_process")
        assert "OutOfMemoryError" in refused.stderr
        assert f"Process {other.pid} has 1.10 GiB memory in use" in refused.stderr
        other.kill()
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet reaped
        assert calls("print(free_mib())", **shared).stdout.split() == [str(8000 - 100)]


def test_a_device_that_others_have_filled_has_no_room_for_a_context(tmp_path: Path) -> None:
    shared = {"PHANTOM_DEVICE": tmp_path / "device", "PHANTOM_TOTAL_MIB": 1000, "PHANTOM_CONTEXT_MIB": 100}
    inner = f"{CALLS}print(malloc(1 << 20))"
    code = f"import subprocess, sys; malloc(850 << 20); subprocess.run([sys.executable, '-c', {inner!r}])"
    assert calls(code, **shared).stdout.split() == ["2"]


def test_a_forked_child_cannot_use_the_device(phantom: Phantom) -> None:
    torch.cuda.synchronize()
    child = os.fork()
    if child == 0:
        os._exit(runtime().cudaDeviceSynchronize())
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3  # cudaErrorInitializationError


def test_a_file_that_is_no_device_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    done = calls("free_mib()", PHANTOM_DEVICE=file)
    assert done.returncode == 2
    assert "expected a new file or one that a phantom has made" in done.stderr
    assert file.read_text() == "mine"


NVML = """
class Process(ctypes.Structure):
    _fields_ = [("pid", ctypes.c_uint), ("used", ctypes.c_ulonglong), ("gi", ctypes.c_uint), ("ci", ctypes.c_uint)]
nvml = ctypes.CDLL("libnvidia-ml.so.1")
handle, count, found = ctypes.c_void_p(), ctypes.c_uint(8), (Process * 8)()
tensor = torch.empty(64 << 20, dtype=torch.uint8, device="cuda")
uuid = f"GPU-{torch.cuda.get_device_properties(0).uuid}".encode()
print(nvml.nvmlInit_v2(), nvml.nvmlDeviceGetHandleByUUID(uuid, ctypes.byref(handle)))
print(nvml.nvmlDeviceGetHandleByUUID(b"GPU-other", ctypes.byref(handle)))
print(nvml.nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), found))
print(count.value, found[0].pid == os.getpid(), found[0].used >> 20)
"""


def test_nvml_tells_processes_when_wanted() -> None:
    done = python(NVML, PHANTOM_NVML="per_process", PHANTOM_CONTEXT_MIB=100)
    assert done.stdout.splitlines() == ["0 0", "6", "0", "1 True 164"], done.stderr


def test_nvml_cannot_be_loaded_when_absent() -> None:
    done = calls('ctypes.CDLL("libnvidia-ml.so.1")', PHANTOM_NVML="absent")
    assert "OSError" in done.stderr
    assert "libnvidia-ml.so.1" in done.stderr


# ---- errors and faults ----


def test_errors_have_cudas_names_and_texts(phantom: Phantom) -> None:
    library = runtime()
    library.cudaGetErrorString.restype = library.cudaGetErrorName.restype = ctypes.c_char_p
    assert library.cudaGetErrorString(2) == b"out of memory"
    assert library.cudaGetErrorString(700).decode() == ILLEGAL
    assert library.cudaGetErrorName(719) == b"cudaErrorLaunchFailure"
    assert library.cudaGetErrorString(12345) == b"unrecognized error code"


def test_an_access_outside_live_memory_poisons_the_context(phantom: Phantom) -> None:
    address = torch.empty(8 * MIB, dtype=torch.uint8, device="cuda").data_ptr()
    release()  # and now nothing is there
    into = ctypes.create_string_buffer(8)
    assert runtime().cudaMemcpy(into, ctypes.c_void_p(address), ctypes.c_size_t(8), 2) == 700
    for _ in range(2):
        with pytest.raises(torch.AcceleratorError, match=ILLEGAL):
            torch.empty(8 * MIB, device="cuda")
    phantom.reset()
    assert torch.zeros(1, device="cuda").item() == 0


def test_a_range_that_ends_outside_is_an_illegal_access(phantom: Phantom) -> None:
    tensor = torch.empty(20 * MIB, dtype=torch.uint8, device="cuda")
    result = runtime().cudaMemset(ctypes.c_void_p(tensor.data_ptr()), 0, ctypes.c_size_t(4096 * MIB))
    phantom.reset()
    assert result == 700


def test_the_nth_allocation_fails_once(phantom: Phantom) -> None:
    before = torch.cuda.memory_stats().get("num_alloc_retries", 0)
    phantom.fail_allocation(2)
    kept = [torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")]
    assert torch.cuda.memory_stats()["num_alloc_retries"] == before
    kept.append(torch.empty(30 * MIB, dtype=torch.uint8, device="cuda"))
    assert torch.cuda.memory_stats()["num_alloc_retries"] == before + 1


def test_memory_is_taken_while_running(phantom: Phantom) -> None:
    free = phantom.free_bytes
    phantom.take(free - 100 * MIB)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(200 * MIB, dtype=torch.uint8, device="cuda")
    with pytest.raises(ValueError, match="bytes are free"):
        phantom.take(free)
    phantom.give_back()
    assert torch.cuda.mem_get_info()[0] == free


def test_every_call_after_one_fails(phantom: Phantom) -> None:
    torch.cuda.synchronize()
    phantom.fail_after(1, 710)
    torch.cuda.mem_get_info()
    for _ in range(2):
        with pytest.raises(torch.AcceleratorError, match="device-side assert triggered"):
            torch.cuda.mem_get_info()


def test_free_memory_is_misreported(phantom: Phantom) -> None:
    true = torch.cuda.mem_get_info()
    phantom.misreport_free(7 * MIB)
    assert torch.cuda.mem_get_info() == (7 * MIB, true[1])
    assert phantom.free_bytes == true[0]
    phantom.misreport_free(None)
    assert torch.cuda.mem_get_info() == true


def test_a_product_fails_once(phantom: Phantom) -> None:
    matrix = torch.zeros(8, 8, device="cuda")
    phantom.fail_gemm()
    with pytest.raises(RuntimeError, match="CUBLAS_STATUS_ALLOC_FAILED when calling `cublasSgemm"):
        matrix @ matrix
    matrix @ matrix


def test_launches_are_slow_in_real_time_only(phantom: Phantom) -> None:
    tensor = torch.zeros(8, device="cuda")
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch has no types here
    before = phantom.launches
    phantom.slow(2000)
    host = os.times().elapsed
    started.record()
    for _ in range(20):
        tensor.add_(1)
    ended.record()
    assert os.times().elapsed - host >= 0.03
    assert phantom.launches == before + 20
    assert started.elapsed_time(ended) < 1


@pytest.mark.parametrize(
    ("fault", "code", "seen"),
    [
        ("fail_allocation:2", "print(malloc(9), malloc(9), malloc(9))", "0 2 0"),
        ("fail_after:2", "print(malloc(9), malloc(9), malloc(9), malloc(9))", "0 0 700 700"),
        ("take_mib:900", "print(free_mib(), malloc(50 << 20))", "0 2"),
        ("misreport_free_mib:7,fail_allocation:1", "print(free_mib(), malloc(9))", "7 2"),
    ],
)
def test_faults_of_a_child(fault: str, code: str, seen: str) -> None:
    done = calls(code, PHANTOM_FAULT=fault, PHANTOM_TOTAL_MIB=1000, PHANTOM_CONTEXT_MIB=100)
    assert done.stdout.strip() == seen, done.stderr


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        ("fail_all:3", 'names "fail_all"; expected fail_allocation, take_mib'),
        ("slow_us", 'holds "slow_us"; expected name:number'),
        ("take_mib:900000", "wants to take 900000 MiB; the device has less free"),
    ],
)
def test_wrong_faults_are_refused(fault: str, told: str) -> None:
    done = calls("free_mib()", PHANTOM_FAULT=fault)
    assert done.returncode == 2
    assert done.stderr.startswith(f"phantom: PHANTOM_FAULT {told}")


# ---- what is missing fails by name ----


def test_a_call_that_is_not_imitated_aborts_by_name() -> None:
    done = python("torch.fft.fft(torch.zeros(8, device='cuda'))")
    assert done.returncode == -signal.SIGABRT
    assert "phantom: cufftCreate is not imitated" in done.stderr


def test_a_driver_call_asked_for_by_name_aborts_when_called() -> None:
    code = (
        "f = ctypes.c_void_p()\n"
        "print(cuda.cudaGetDriverEntryPointByVersion({name!r}, ctypes.byref(f), 13000, 0, None), bool(f), flush=True)\n"
        "ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint)(f.value)(0)"
    )
    imitated = calls(code.format(name=b"cuInit"))
    assert (imitated.returncode, imitated.stdout) == (0, "0 True\n")
    done = calls(code.format(name=b"cuMulticastCreate"))
    assert done.stdout == "0 True\n"
    assert done.returncode == -signal.SIGABRT
    assert "phantom: cuMulticastCreate is not imitated" in done.stderr


def test_an_attribute_that_is_not_known_aborts_by_number() -> None:
    done = calls("cuda.cudaDeviceGetAttribute(ctypes.byref(ctypes.c_int()), 101, 0)")
    assert done.returncode == -signal.SIGABRT
    assert "phantom: cudaDeviceGetAttribute(101) is not imitated" in done.stderr


# ---- the virtual clock ----


def elapsed_ms(work: object) -> float:
    assert callable(work)
    started, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]  # torch has no types here
    started.record()
    work()
    ended.record()
    return float(started.elapsed_time(ended))


def test_times_repeat_and_follow_the_size(phantom: Phantom) -> None:
    small, large = (torch.zeros(side, side, device="cuda") for side in (512, 2048))
    for work in (lambda x: x @ x, lambda x: x.add_(1), lambda x: x.clone(), lambda x: x.cpu()):
        times = [[elapsed_ms(lambda x=x, work=work: work(x)) for _ in range(2)] for x in (small, large)]
        assert times[0][0] == pytest.approx(times[0][1], rel=1e-3)
        assert times[1][0] == pytest.approx(times[1][1], rel=1e-3)
        assert times[0][0] < times[1][0]


def test_half_precision_products_are_faster(phantom: Phantom) -> None:
    matrix = torch.zeros(1024, 1024, device="cuda")
    half = matrix.bfloat16()
    assert elapsed_ms(lambda: half @ half) < elapsed_ms(lambda: matrix @ matrix) / 4


def test_convolutions_are_timed_by_their_size(phantom: Phantom) -> None:
    narrow, wide = (torch.zeros(channels, 16, 3, 3, device="cuda") for channels in (8, 256))
    image = torch.zeros(4, 16, 64, 64, device="cuda")
    assert elapsed_ms(lambda: F.conv2d(image, narrow)) < elapsed_ms(lambda: F.conv2d(image, wide)) / 4


def test_events_without_times_are_refused(phantom: Phantom) -> None:
    first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch has no types here
    first.record()
    with pytest.raises(ValueError, match="recorded"):
        first.elapsed_time(last)


# ---- training steps ----


def perceptron() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.LayerNorm(64), nn.Linear(64, 8)), torch.rand(
        16, 32
    )


def convnet() -> tuple[nn.Module, torch.Tensor]:
    layers = [
        nn.Conv2d(3, 8, 3, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=8),
    ]
    layers += [nn.ConvTranspose2d(8, 8, 2, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 8)]
    return nn.Sequential(*layers), torch.rand(4, 3, 32, 32)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 64)
        self.block = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.1, batch_first=True, norm_first=True)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1], device=tokens.device)
        hidden = torch.utils.checkpoint.checkpoint(self.block, self.embedding(tokens), mask, use_reentrant=False)
        output: torch.Tensor = hidden.mean(1)
        return output


def attention() -> tuple[nn.Module, torch.Tensor]:
    return Attention(), torch.zeros(4, 16, dtype=torch.long)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.LSTM(16, 8, 2, batch_first=True, dropout=0.1, bidirectional=True)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.inner(batch)[0][:, -1]
        return output


def recurrent() -> tuple[nn.Module, torch.Tensor]:
    return Recurrent(), torch.rand(4, 6, 16)


AMP = [None, torch.bfloat16, torch.float16]
OPTIMIZERS = [{"fused": True}, {"foreach": True}]
WAYS = list(itertools.product(AMP, OPTIMIZERS))


@pytest.mark.parametrize("make", [perceptron, convnet, attention, recurrent])
@pytest.mark.parametrize(("amp", "how"), WAYS)
def test_training_steps_run(phantom: Phantom, make: object, amp: torch.dtype | None, how: dict[str, Any]) -> None:
    assert callable(make)
    model, batch = make()
    model, batch = model.cuda(), batch.cuda()
    if batch.dim() == 4:
        model, batch = model.to(memory_format=torch.channels_last), batch.to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(model.parameters(), **how)
    scaler = torch.amp.GradScaler(enabled=amp is torch.float16)
    peaks = []
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        with torch.autocast("cuda", dtype=amp, enabled=amp is not None):
            output = model(batch)
            loss = F.cross_entropy(output, torch.zeros(len(batch), dtype=torch.long, device="cuda"))
        scaler.scale(loss).backward()  # type: ignore[no-untyped-call]  # torch has no types here
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        peaks.append(torch.cuda.max_memory_allocated())
    assert peaks[1] == peaks[2]
    if scaler.is_enabled():
        assert scaler.get_scale() == 65536  # "no infinity was found"
        assert len(optimizer.state) > 0  # so the optimizer really stepped


@pytest.mark.parametrize("kind", ["FLASH_ATTENTION", "EFFICIENT_ATTENTION", "MATH"])
def test_attention_kernels_run(phantom: Phantom, kind: str) -> None:
    query = torch.zeros(2, 4, 64, 32, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    with torch.nn.attention.sdpa_kernel(getattr(torch.nn.attention.SDPBackend, kind)):
        F.scaled_dot_product_attention(query, query, query, is_causal=True).sum().backward()  # type: ignore[no-untyped-call]  # torch has no types here
    assert query.grad is not None


def test_random_states_are_kept_and_put_back(phantom: Phantom) -> None:
    state = torch.cuda.get_rng_state()
    F.dropout(torch.zeros(10_000, device="cuda"))
    assert not torch.equal(torch.cuda.get_rng_state(), state)  # the generator's offset moved
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_a_loader_pins_memory(phantom: Phantom) -> None:
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(8)), 4, pin_memory=True)
    assert [batch[0].is_pinned() for batch in loader] == [True, True]


def test_streams_wait_for_each_other(phantom: Phantom) -> None:
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types here
    with torch.cuda.stream(side):
        made = torch.full((4,), 3, device="cuda")
        made.record_stream(torch.cuda.current_stream())
    torch.cuda.current_stream().wait_stream(side)
    assert side.query()
    assert made.tolist() == [3, 3, 3, 3]
