"""Whose a line is, and how it is called."""

import inspect
import sys
import sysconfig
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import nn

import autofit
from autofit.doctor.sites import NOWHERE, Owner, Site, here, line_of, owner, owner_of

PACKAGES = Path(sysconfig.get_path("purelib"))
THIS = "tests/doctor/test_sites.py"


@pytest.mark.parametrize(
    ("file", "whose"),
    [
        (torch.nn.functional.__file__, Owner.HIDDEN),
        (str(Path(autofit.__file__).parent / "doctor" / "watch.py"), Owner.HIDDEN),
        ("<string>", Owner.HIDDEN),
        ("<frozen importlib._bootstrap>", Owner.HIDDEN),
        ("<eval_with_key>.7", Owner.HIDDEN),
        (inspect.__file__, Owner.LIBRARY),
        (str(PACKAGES / "transformers" / "modeling_utils.py"), Owner.LIBRARY),
        ("/elsewhere/site-packages/lightning/loop.py", Owner.LIBRARY),
        ("/usr/lib/python3/dist-packages/yaml/loader.py", Owner.LIBRARY),
        (__file__, Owner.USER),
        ("/home/me/train.py", Owner.USER),
        ("/home/me/torch/train.py", Owner.USER),
        ("<ipython-input-3-abc>", Owner.USER),
        ("<stdin>", Owner.USER),
    ],
)
def test_a_file_belongs_to_one(file: str, whose: Owner) -> None:
    assert owner_of(file) is whose


def frame() -> FrameType:
    return sys._getframe(1)


def test_a_line_is_named_by_its_file_and_number() -> None:
    running = frame()
    number = running.f_lineno
    assert owner(running) is Owner.USER
    assert line_of(running).startswith(THIS)
    assert int(line_of(running).rpartition(":")[2]) >= number


def test_the_users_line_is_the_innermost_one() -> None:
    def inner() -> Site:
        return here()

    site = inner()
    assert site.user.startswith(f"{THIS}:")
    assert site.library == ""
    assert site != here(), "another line is another site"


def library(code: str, path: Path, **names: object) -> dict[str, object]:
    """Runs code as if it were in a file of an installed package."""
    space: dict[str, object] = dict(names)
    exec(compile(code, str(path), "exec"), space)
    return space


def test_a_library_between_is_named_with_the_users_line() -> None:
    space = library("\n\ndef call():\n    return here()\n", PACKAGES / "some_library" / "part.py", here=here)
    site: Site = space["call"]()  # type: ignore[operator]  # a function of the code above
    assert site.library == "some_library/part.py:4"
    assert site.user.startswith(THIS)
    assert str(site) == f"{site.user} (some_library/part.py:4)"


def test_the_innermost_line_of_a_library_counts() -> None:
    code = "def call():\n    return inner()\n\ndef inner():\n    return here()\n"
    space = library(code, PACKAGES / "some_library" / "part.py", here=here)
    site: Site = space["call"]()  # type: ignore[operator]  # a function of the code above
    assert site.library == "some_library/part.py:5"


def test_a_library_outside_the_users_line_is_not_named() -> None:
    space = library("def call(function):\n    return function()\n", PACKAGES / "runner.py")
    site: Site = space["call"](lambda: here())  # type: ignore[operator]  # noqa: PLW0108  # its frame counts
    assert site.user
    assert site.library == ""


def test_lines_of_torch_are_not_named() -> None:
    found: list[Site] = []
    model = nn.Linear(2, 2)
    model.register_forward_hook(lambda *_: found.append(here()))
    model.register_forward_hook(library("def call(*_):\n    found.append(here())", PACKAGES / "hooks.py", here=here,
                                        found=found)["call"])  # type: ignore[arg-type]  # fmt: skip
    model(torch.ones(1, 2))
    assert [site.library for site in found] == ["", "hooks.py:2"]
    assert all(site.user.startswith(THIS) for site in found)


def test_places_without_a_line_are_empty_texts() -> None:
    assert str(NOWHERE) == ""
    assert str(Site("train.py:3")) == "train.py:3"
    assert str(Site("", "library.py:4")) == "library.py:4"


def test_lines_below_the_working_folder_are_relative(tmp_path: Path) -> None:
    outside = tmp_path / "train.py"
    outside.write_text("def call(frame):\n    return frame()\n")
    space: dict[str, object] = {}
    exec(compile(outside.read_text(), str(outside), "exec"), space)
    found: FrameType = space["call"](frame)  # type: ignore[operator]  # a function of the code above
    assert line_of(found) == f"{outside}:2"
