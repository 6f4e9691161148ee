"""Mutations of `autofit/devices/nvml.py`."""

from scripts.mutate_cuda.mutation import Mutation

FILE = "autofit/devices/nvml.py"


def in_nvml(name: str, old: str, new: str, *likely: str) -> Mutation:
    return Mutation(name, FILE, old, new, likely)


MUTATIONS = (
    in_nvml(
        "NVML that does not start is asked",
        "if library.nvmlInit_v2() != _SUCCESS:",
        "if False:",
        "tests/devices/test_nvml.py",
    ),
    in_nvml(
        "slices are not found", 'for kind in ("GPU", "MIG"):', 'for kind in ("GPU",):', "tests/devices/test_nvml.py"
    ),
    in_nvml(
        "a machine without NVML is an error",
        "except (OSError, AttributeError):  # no such library, or an older one without the function",
        "except ZeroDivisionError:",
        "footprint",
        "tests/devices/test_nvml.py",
    ),
    in_nvml(
        "any process is taken for this one",
        "            if process.pid == os.getpid():\n",
        "            if True:\n",
        "processes",
        "tests/devices/test_nvml.py",
    ),
    in_nvml(
        "the only process of a container is not known",
        "return (int(found[0].used_bytes), False) if len(found) == 1 else None",
        "return None",
        "footprint",
        "tests/devices/test_nvml.py",
    ),
    in_nvml(
        "the first of many processes is taken for this one",
        "return (int(found[0].used_bytes), False) if len(found) == 1 else None",
        "return (int(found[0].used_bytes), False) if found else None",
        "tests/devices/test_nvml.py",
    ),
    in_nvml(
        "a process that was guessed counts as named",
        "return (int(found[0].used_bytes), False) if len(found) == 1 else None",
        "return (int(found[0].used_bytes), True) if len(found) == 1 else None",
        "tests/devices/test_nvml.py",
    ),
    in_nvml(
        "more processes than there is room for end the question",
        "            if code != _INSUFFICIENT_SIZE:\n",
        "            if True:\n",
        "tests/devices/test_nvml.py",
    ),
    in_nvml("a refusal counts as an answer", "if code == _SUCCESS else []", "", "tests/devices/test_nvml.py"),
    in_nvml(
        "an old driver is an error",
        "except AttributeError:  # a driver before 510",
        "except ZeroDivisionError:",
        "tests/devices/test_nvml.py",
    ),
)
