"""Builds the phantom GPU for one build of torch.

    python tests/phantom/build.py --torch <folder of the torch package> --include DIR [--include DIR] --out DIR

Writes into the output folder:

* `libphantom.so`: everything that is imitated, and a trap for every other symbol of NVIDIA's libraries that torch's
  libraries import. A trap prints the name of the call and aborts.
* `stubs/`: an empty library for each of NVIDIA's libraries that torch's libraries need, with its soname and versions.
* `nvml/libnvidia-ml.so.1`, loaded when NVML is wanted, and an unloadable one in `stubs/` for when it is not.
* `phantom.json`: what it was built for and from.

Needs gcc and binutils (nm, readelf), and the headers of the CUDA runtime (wheels `nvidia-cuda-runtime` and
`nvidia-cuda-crt`, or a toolkit). Needs no GPU, driver, cuDNN or cuBLAS, and does not import torch.
"""

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

CUDA_MAJOR = 13
SOURCES = Path(__file__).resolve().parent / "src"
MANIFEST = "phantom.json"

_FLAGS = ("-std=gnu11", "-O2", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra", "-Werror")
_NVIDIA_LIBRARY = re.compile(r"^lib(cu[a-z]+|cusparseLt|cublasLt|nccl|nvrtc|nvshmem\w*|nvJitLink|nvToolsExt)\.so\b")
_NVIDIA_SYMBOL = re.compile(
    r"^(__cuda[A-Z]|cuda[A-Z]|cu[A-Z]|cublas|cudnn|cusparse|cusolver|cufft|curand|cupti|nccl[A-Z]|nvrtc[A-Z]|nvshmem|nvJit|nvtx)"
)
_UNLOADABLE = "Not a library on purpose: the phantom's NVML is absent, so loading it must fail.\n"


class BuildError(Exception):
    """The phantom cannot be built here; the text is one line for a person."""


@dataclass(frozen=True)
class TorchBuild:
    """Which torch a phantom is for."""

    version: str
    cuda: str


def torch_build(folder: Path) -> TorchBuild:
    """Returns the versions of the torch package in `folder`, read from its files.

    Raises:
        BuildError: if there is no torch, or it is no build for the CUDA version that is imitated.
    """
    file = folder / "version.py"
    if not file.is_file():
        raise BuildError(f"{folder} holds no torch package; expected a folder with version.py and lib/")
    text = file.read_text(encoding="utf-8")
    version = re.search(r"^__version__ = '([^']+)'", text, re.MULTILINE)
    cuda = re.search(r"^cuda\b.*= '([^']+)'", text, re.MULTILINE)
    if version is None or cuda is None:
        name = version.group(1) if version else "unknown"
        raise BuildError(f"torch {name} in {folder} is no CUDA build; expected one for CUDA {CUDA_MAJOR}")
    if int(cuda.group(1).partition(".")[0]) != CUDA_MAJOR:
        raise BuildError(f"torch {version.group(1)} is built for CUDA {cuda.group(1)}; expected CUDA {CUDA_MAJOR}")
    return TorchBuild(version.group(1), cuda.group(1))


def sources_digest() -> str:
    """Returns a digest of the C sources and of this file."""
    digest = hashlib.sha256()
    for file in [*sorted(SOURCES.iterdir()), Path(__file__).resolve()]:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def check_tools() -> None:
    """Raises BuildError if a program that the build needs is missing."""
    for tool, package in (("gcc", "gcc"), ("nm", "binutils"), ("readelf", "binutils")):
        if shutil.which(tool) is None:
            raise BuildError(f"{tool} was not found on PATH; install {package} to build the phantom GPU")


def check_headers(folders: list[Path]) -> None:
    """Raises BuildError unless the folders hold the CUDA headers of the right version."""
    for header, wheel in (
        ("cuda_runtime_api.h", "nvidia-cuda-runtime"),
        ("cuda.h", "nvidia-cuda-runtime"),
        ("crt/host_defines.h", "nvidia-cuda-crt"),
    ):
        if not any((folder / header).is_file() for folder in folders):
            searched = ", ".join(map(str, folders)) or "no folder"
            raise BuildError(f"{header} was not found in {searched}; it comes with the wheel {wheel} or a CUDA toolkit")
    text = next(folder / "cuda_runtime_api.h" for folder in folders if (folder / "cuda_runtime_api.h").is_file())
    version = re.search(r"#define CUDART_VERSION\s+(\d+)", text.read_text(encoding="utf-8", errors="replace"))
    if version is None or int(version.group(1)) // 1000 != CUDA_MAJOR:
        found = "an unknown version" if version is None else f"version {int(version.group(1)) / 1000:g}"
        raise BuildError(f"{text} is of CUDA {found}; expected CUDA {CUDA_MAJOR}")


def build(torch_folder: Path, include: list[Path], out: Path) -> None:
    """Writes the phantom for the torch in `torch_folder` to `out`, replacing what an earlier build wrote there.

    Raises:
        BuildError: if something that is needed is missing or does not fit.
    """
    built_for = torch_build(torch_folder)
    check_tools()
    check_headers(include)
    libraries = sorted((torch_folder / "lib").glob("lib*.so"))
    if not any(library.name == "libtorch_cuda.so" for library in libraries):
        raise BuildError(f"{torch_folder / 'lib'} holds no libtorch_cuda.so; expected a CUDA build of torch")
    for old in ("stubs", "nvml"):
        shutil.rmtree(out / old, ignore_errors=True)
    (out / MANIFEST).unlink(missing_ok=True)  # no manifest, no phantom: a build that was cut short is not used
    for folder in ("stubs", "nvml"):
        (out / folder).mkdir(parents=True)
    with tempfile.TemporaryDirectory() as scratch:
        build_library(libraries, include, Path(scratch), out / "libphantom.so")
        build_stubs(libraries, Path(scratch), out)
    digest = sources_digest()
    manifest = {"torch": built_for.version, "cuda": built_for.cuda, "sources": digest}
    (out / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")


def build_library(libraries: list[Path], include: list[Path], scratch: Path, target: Path) -> None:
    """Compiles the sources, makes traps for what torch's libraries import beyond them, and links the library."""
    objects = [scratch / f"{source.stem}.o" for source in sorted(SOURCES.glob("*.c"))]
    folders = [f"-I{folder}" for folder in include]
    for made in objects:
        _run("gcc", *_FLAGS, *folders, "-c", str(SOURCES / f"{made.stem}.c"), "-o", str(made))
    imported = {name.partition("@")[0] for name in _symbols(libraries, "--dynamic", "--undefined-only")}
    imitated = _symbols(objects, "--extern-only", "--defined-only")
    missing = sorted(name for name in imported - imitated if _NVIDIA_SYMBOL.match(name))
    traps = scratch / "traps.c"
    lines = ["_Noreturn void phantom_missing(const char *format, ...);", *(_trap(name) for name in missing)]
    traps.write_text("\n".join(lines) + "\n", encoding="utf-8")
    _run("gcc", *_FLAGS, "-c", str(traps), "-o", str(scratch / "traps.o"))
    files = [*map(str, objects), str(scratch / "traps.o")]
    _run("gcc", "-shared", "-Wl,-soname,libphantom.so", "-o", str(target), *files, "-ldl", "-lpthread")


def build_stubs(libraries: list[Path], scratch: Path, out: Path) -> None:
    """Makes the empty libraries: they only bring the phantom's symbols under the names that are asked for.

    Each depends on the phantom, so that looking up a symbol in one of them finds the phantom's.
    """
    wanted = needed_libraries(libraries)
    for soname, versions in wanted.items():
        _stub(soname, versions, scratch, out, out / "stubs" / soname)
    _stub("libnvidia-ml.so.1", set(), scratch, out, out / "nvml" / "libnvidia-ml.so.1")
    (out / "stubs" / "libnvidia-ml.so.1").write_text(_UNLOADABLE, encoding="utf-8")


def needed_libraries(libraries: list[Path]) -> dict[str, set[str]]:
    """Returns NVIDIA's libraries that the given ones need, by soname, each with the symbol versions asked of it."""
    found: dict[str, set[str]] = defaultdict(set)
    for library in libraries:
        text = _run("readelf", "--wide", "--dynamic", "--version-info", str(library))
        for soname in re.findall(r"\(NEEDED\).*\[([^\]]+)\]", text):
            if _NVIDIA_LIBRARY.match(soname):
                found[soname].update()
        for soname, entries in re.findall(r"Version: \d+  File: (\S+)  Cnt: \d+\n((?:.*  Name: .*\n)*)", text):
            if soname in found:
                found[soname].update(re.findall(r"Name: (\S+)", entries))
    return dict(found)


def _stub(soname: str, versions: set[str], scratch: Path, out: Path, target: Path) -> None:
    source, script = scratch / "stub.c", scratch / "versions.map"
    source.write_text("int phantom_stub;\n", encoding="utf-8")
    script.write_text("".join(f"{version} {{ }};\n" for version in sorted(versions)), encoding="utf-8")
    options = [f"-Wl,--version-script={script}"] if versions else []
    _run("gcc", "-shared", "-fPIC", f"-Wl,-soname,{soname}", *options, "-o", str(target), str(source),
         "-Wl,--no-as-needed", "-L", str(out), "-lphantom")  # fmt: skip


def _trap(name: str) -> str:
    return f'__attribute__((visibility("default"))) void {name}(void) {{ phantom_missing("%s", "{name}"); }}'


def _symbols(files: list[Path], *options: str) -> set[str]:
    lines = _run("nm", *options, "--format=just-symbols", *map(str, files)).splitlines()
    return {line.strip() for line in lines if line.strip() and not line.endswith(":")}


def _run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[-300:])
        raise BuildError(f"{command[0]} failed on {command[-1]}: {reason}")
    return done.stdout


def main(arguments: list[str]) -> int:
    """Builds; returns 0, or 2 after one line on stderr."""
    parser = argparse.ArgumentParser(description="Build the phantom GPU for one build of torch.")
    parser.add_argument("--torch", type=Path, required=True, help="folder of the torch package")
    parser.add_argument("--include", type=Path, action="append", default=[], help="folder with CUDA headers")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    given = parser.parse_args(arguments)
    try:
        build(given.torch.resolve(), [folder.resolve() for folder in given.include], given.out.resolve())
    except BuildError as error:
        sys.stderr.write(f"phantom: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
