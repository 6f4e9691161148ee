"""The examples as modules: they are scripts in a folder that is no package."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    """Returns a fresh copy of the module of an example, whose constants may be changed."""
    if name == "huggingface":
        pytest.importorskip("transformers")
    spec = spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
