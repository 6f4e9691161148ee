"""Building and starting the phantom: what is refused, in one line, and what a build contains. Runs on any machine."""

import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.phantom.build import (
    CUDA_MAJOR,
    BuildError,
    build,
    check_headers,
    check_tools,
    main,
    needed_libraries,
    sources_digest,
    torch_build,
)
from tests.phantom.run import VARIABLES, RunError, check_phantom, check_settings, environment, find_torch
from tests.phantom.run import main as run_main


def headers() -> list[Path]:
    """Returns where CUDA's headers are on this machine, if anywhere."""
    places = [
        Path(sysconfig.get_path("purelib")) / "nvidia" / f"cu{CUDA_MAJOR}" / "include",
        Path("/usr/local/cuda/include"),
    ]
    if "CUDA_HOME" in os.environ:
        places.insert(0, Path(os.environ["CUDA_HOME"]) / "include")
    for place in places:
        try:
            check_headers([place])
        except BuildError:
            continue
        return [place]
    return []


TOOLS = [tool for tool in ("gcc", "nm", "readelf") if shutil.which(tool) is None]
needs_tools = pytest.mark.skipif(bool(TOOLS), reason=f"needs {', '.join(TOOLS)}")
needs_headers = pytest.mark.skipif(not headers(), reason="needs the CUDA headers (wheels, toolkit, or CUDA_HOME)")


def torch_folder(folder: Path, version: str = "2.11.0+cu130", cuda: str | None = "13.0") -> Path:
    """Makes what looks like an installed torch."""
    (folder / "lib").mkdir(parents=True)
    shown = repr(cuda)
    (folder / "version.py").write_text(
        "from typing import Optional\n\n__all__ = ['__version__', 'cuda']\n"
        f"__version__ = {version!r}\ncuda: Optional[str] = {shown}\nhip: Optional[str] = None\n"
    )
    return folder


def cuda_headers(folder: Path, version: int) -> Path:
    (folder / "crt").mkdir(parents=True)
    (folder / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {version}\n")
    for name in ("cuda.h", "crt/host_defines.h"):
        (folder / name).write_text("")
    return folder


# ---- what the build refuses ----


def test_the_torch_build_is_read_without_importing_it(tmp_path: Path) -> None:
    found = torch_build(torch_folder(tmp_path / "torch"))
    assert (found.version, found.cuda) == ("2.11.0+cu130", "13.0")


@pytest.mark.parametrize(
    ("version", "cuda", "told"),
    [
        ("2.11.0+cpu", None, r"torch 2\.11\.0\+cpu in .* is no CUDA build; expected one for CUDA 13"),
        ("2.11.0+cu126", "12.6", r"torch 2\.11\.0\+cu126 is built for CUDA 12\.6; expected CUDA 13"),
    ],
)
def test_a_torch_for_something_else_is_refused(tmp_path: Path, version: str, cuda: str | None, told: str) -> None:
    folder = torch_folder(tmp_path / "torch", version, cuda)
    with pytest.raises(BuildError, match=told):
        build(folder, [], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_without_torch_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="holds no torch package"):
        torch_build(tmp_path)


@pytest.mark.parametrize("missing", ["gcc", "nm", "readelf"])
def test_a_missing_tool_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    for tool in {"gcc", "nm", "readelf"} - {missing}:
        (tmp_path / tool).touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BuildError, match=f"{missing} was not found on PATH; install"):
        check_tools()


def test_missing_headers_are_named_with_their_wheel(tmp_path: Path) -> None:
    folder = cuda_headers(tmp_path / "include", 13000)
    check_headers([folder])
    (folder / "crt" / "host_defines.h").unlink()
    with pytest.raises(
        BuildError, match=r"crt/host_defines.h was not found in .*; it comes with the wheel nvidia-cuda-crt"
    ):
        check_headers([folder])
    with pytest.raises(BuildError, match=r"cuda_runtime_api\.h was not found in no folder"):
        check_headers([])


def test_headers_of_another_cuda_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"is of CUDA version 12\.08; expected CUDA 13"):
        check_headers([cuda_headers(tmp_path, 12080)])


def test_the_command_says_it_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--torch", str(tmp_path), "--include", str(tmp_path), "--out", str(tmp_path / "out")]
    assert main(arguments) == 2
    told = capsys.readouterr().err
    assert told.startswith("phantom: ")
    assert told.count("\n") == 1


# ---- a build against a small library that stands for torch ----


def compile_library(target: Path, source: str, *options: str) -> None:
    file = target.parent / f"{target.name}.c"
    file.write_text(source)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(target), str(file), *options], check=True)
    file.unlink()


@pytest.fixture(scope="module")
def small_torch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A library that calls an imitated and an unknown function of a versioned libcudart, under torch's names."""
    folder = torch_folder(tmp_path_factory.mktemp("small") / "torch")
    real = folder.parent / "real"
    real.mkdir()
    (real / "map").write_text("libcudart.so.13 { global: *; };\n")
    source = "int cudaGetDeviceCount(int *n) { *n = 7; return 0; }\nint cudaMadeUp(void) { return 0; }\n"
    soname = "-Wl,-soname,libcudart.so.13"
    compile_library(real / "libcudart.so", source, soname, f"-Wl,--version-script={real / 'map'}")
    source = (
        "int cudaGetDeviceCount(int *); int cudaMadeUp(void);\n"
        "int devices(void) { int n = -1; cudaGetDeviceCount(&n); return n; }\n"
        "int made_up(void) { return cudaMadeUp(); }\n"
    )
    compile_library(folder / "lib" / "libtorch_cuda.so", source, "-L", str(real), "-lcudart")
    return folder


@needs_tools
def test_needed_libraries_come_with_their_versions(small_torch: Path) -> None:
    assert needed_libraries([small_torch / "lib" / "libtorch_cuda.so"]) == {"libcudart.so.13": {"libcudart.so.13"}}


@pytest.fixture(scope="module")
def built(small_torch: Path) -> Path:
    out = small_torch.parent / "phantom"
    build(small_torch, headers(), out)
    return out


@needs_tools
@needs_headers
def test_the_manifest_says_what_it_was_built_for(built: Path) -> None:
    manifest = json.loads((built / "phantom.json").read_text())
    assert manifest == {"torch": "2.11.0+cu130", "cuda": "13.0", "sources": sources_digest()}


def call(built: Path, small_torch: Path, function: str) -> subprocess.CompletedProcess[str]:
    library = small_torch / "lib" / "libtorch_cuda.so"
    code = f"import ctypes; print(ctypes.CDLL({str(library)!r}).{function}())"
    variables = {**os.environ, **environment(built)}
    return subprocess.run([sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=False)


@needs_tools
@needs_headers
def test_imitated_calls_answer_and_others_abort_by_name(built: Path, small_torch: Path) -> None:
    answered = call(built, small_torch, "devices")
    assert (answered.stdout, answered.stderr) == ("1\n", "")
    aborted = call(built, small_torch, "made_up")
    assert aborted.returncode == -signal.SIGABRT
    assert aborted.stderr.startswith("phantom: cudaMadeUp is not imitated\n")


@needs_tools
@needs_headers
def test_a_build_that_fails_leaves_no_phantom(built: Path, small_torch: Path, tmp_path: Path) -> None:
    out = tmp_path / "phantom"
    shutil.copytree(built, out)
    broken = shutil.copytree(headers()[0], tmp_path / "include")
    (broken / "cuda.h").write_text("#error unreadable\n")
    with pytest.raises(BuildError, match="gcc failed on"):
        build(small_torch, [broken], out)
    with pytest.raises(RunError, match="holds no finished phantom"):
        check_phantom(out, small_torch)


# ---- starting ----


def finished(folder: Path, torch: str = "2.11.0+cu130") -> Path:
    (folder / "stubs").mkdir(parents=True)
    for name in ("libcudart.so.13", "libcuda.so.1", "libnvidia-ml.so.1"):
        (folder / "stubs" / name).touch()
    (folder / "phantom.json").write_text(json.dumps({"torch": torch, "cuda": "13.0", "sources": ""}))
    return folder


def test_the_environment_puts_the_phantom_first(tmp_path: Path) -> None:
    found = environment(finished(tmp_path / "phantom"))
    stubs = tmp_path / "phantom" / "stubs"
    expected = [tmp_path / "phantom" / "libphantom.so", stubs / "libcuda.so.1", stubs / "libcudart.so.13"]
    assert found["LD_PRELOAD"].split() == [str(path) for path in expected]
    assert found["LD_LIBRARY_PATH"] == str(stubs)


def test_a_phantom_for_another_torch_is_refused(tmp_path: Path) -> None:
    torch = torch_folder(tmp_path / "torch")
    check_phantom(finished(tmp_path / "right"), torch)
    with pytest.raises(
        RunError, match=r"is for torch 2\.13\.0\+cu130, but .* holds torch 2\.11\.0\+cu130; build it again"
    ):
        check_phantom(finished(tmp_path / "other", "2.13.0+cu130"), torch)
    with pytest.raises(RunError, match=r"holds no finished phantom .*build\.py"):
        check_phantom(tmp_path, torch)


def test_no_python_and_no_torch_are_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="is no program; expected a Python after --"):
        find_torch(str(tmp_path / "python"))
    with pytest.raises(RunError, match="has no torch"):
        find_torch("true")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PHANTOM_TOTAL_MIB", "80G"),
        ("PHANTOM_TOTAL_MIB", "-1"),
        ("PHANTOM_TOTAL_MIB", "400"),
        ("PHANTOM_CONTEXT_MIB", "1.5"),
        ("PHANTOM_CAPABILITY", "eight"),
        ("PHANTOM_UNIFIED", "2"),
        ("PHANTOM_NVML", "no"),
        ("PHANTOM_FAULT", "fail_allocation"),
        ("PHANTOM_FAULT", "explode:1"),
        ("PHANTOM_FAULT", "slow_us:1,"),
    ],
)
def test_a_wrong_value_is_told(name: str, value: str) -> None:
    with pytest.raises(RunError, match=f"{name} is .*{value}.*; expected"):
        check_settings({name: value})


def test_right_values_are_taken() -> None:
    check_settings({})
    check_settings(VARIABLES)
    check_settings(
        {
            "PHANTOM_TOTAL_MIB": "1024",
            "PHANTOM_CAPABILITY": "9.0",
            "PHANTOM_FAULT": "fail_allocation:3,slow_us:20",
            "HOME": "/",
        }
    )


def test_a_misspelt_variable_is_told() -> None:
    with pytest.raises(RunError, match="PHANTOM_TOTAL_GIB is not known; expected one of PHANTOM_TOTAL_MIB"):
        check_settings({"PHANTOM_TOTAL_GIB": "80"})


def test_the_command_refuses_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PHANTOM_TOTAL_MIB", "much")
    assert run_main(["--phantom", str(tmp_path), "--", sys.executable]) == 2
    assert capsys.readouterr().err == 'phantom: PHANTOM_TOTAL_MIB is "much"; expected a whole number of MiB\n'


def test_there_is_no_control_without_a_phantom() -> None:
    if hasattr(ctypes.CDLL(None), "phantom_launches"):
        pytest.skip("this process has a phantom")
    from tests.phantom.phantom import Phantom, present  # noqa: PLC0415  # kept with the check that it needs

    assert not present()
    with pytest.raises(RuntimeError, match=r"start it with tests/phantom/run\.py"):
        Phantom()
