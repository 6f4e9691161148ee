"""Which code belongs to an installed package, and how it is named."""

import json
from typing import Any

import pytest
import torch

from autofit.identity.packages import installed, named, of_package


@pytest.mark.parametrize("file", [json.__file__, torch.__file__, "<frozen os>", "/x/site-packages/a/b.py"])
def test_what_was_installed_is_known_by_its_file(file: str) -> None:
    assert installed(file)


@pytest.mark.parametrize("file", [__file__, "<stdin>", "/home/me/train.py"])
def test_the_users_files_are_not(file: str) -> None:
    assert not installed(file)


@pytest.mark.parametrize(
    ("module", "belongs"),
    [
        ("torch.nn", True),
        ("json", True),
        ("builtins", True),
        (__name__, False),
        ("__main__", False),
        ("no_such", False),
    ],
)
def test_a_module_belongs_to_a_package_or_to_the_user(module: Any, belongs: bool) -> None:
    assert of_package(module) is belongs


def test_a_name_has_the_version_where_the_package_says_one() -> None:
    assert named("torch.nn", "Linear") == f"torch.nn.Linear {torch.__version__}"
    assert named("functools", "partial") == "functools.partial "
