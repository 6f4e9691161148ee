"""Mutations of `autofit/devices/nvml.py`."""

from scripts.mutate_cuda.mutation import Mutation

FILE = "autofit/devices/nvml.py"


def in_nvml(name: str, old: str, new: str, *likely: str) -> Mutation:
    return Mutation(name, FILE, old, new, likely)


MUTATIONS = (
    in_nvml(
        "a driver's version that cannot be read is an error",
        '        except pynvml.NVMLError:\n            return ""\n',
        '        except ZeroDivisionError:\n            return ""\n',
        "tests/devices/test_nvml.py",
    ),
    in_nvml(
        "slices are not found", 'for kind in ("GPU", "MIG"):', 'for kind in ("GPU",):', "tests/devices/test_nvml.py"
    ),
    in_nvml(
        "NVML that does not start is an error",
        "        pynvml.nvmlInit()\n    except pynvml.NVMLError:\n",
        "        pynvml.nvmlInit()\n    except ZeroDivisionError:\n",
        "tests/devices/test_nvml.py",
    ),
    in_nvml("the only process of a container is not known", "len(processes) != 1", "True", "footprint"),
    in_nvml(
        "the first of many processes is taken for this one",
        "len(processes) != 1",
        "not processes",
        "tests/devices/test_nvml.py",
    ),
    in_nvml(
        "a process that was guessed counts as named",
        "(int(used), named)",
        "(int(used), True)",
        "tests/devices/test_nvml.py",
    ),
    in_nvml(
        "a refusal is an error",
        "        except pynvml.NVMLError:\n            return None\n",
        "        except ZeroDivisionError:\n            return None\n",
        "tests/devices/test_nvml.py",
    ),
    in_nvml("memory that is not reported is an error", "None if used is None else ", "", "tests/devices/test_cuda.py"),
)
