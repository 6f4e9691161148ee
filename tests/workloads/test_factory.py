"""The user's factory is found, called, and its failures are shown as the user's own."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from torch import nn

from autofit.core.errors import UsageError, UserCodeError, WorkloadError
from autofit.workloads import factory
from autofit.workloads.workload import Workload

GOOD = """
from torch import nn

def make_workload(width=4):
    return nn.Linear(width, 2), [1, 2]

def make_other(width=4):
    from autofit.workloads.workload import Workload
    return Workload(nn.Linear(width, 2), [1], global_batch_size=8)

not_callable = 3
"""

Write = Callable[[str, str], Path]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Write]:
    """Writes a file into the working directory; what is imported from there is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)

    def write_file(name: str, text: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    yield write_file
    for name in set(sys.modules) - before:
        if name.startswith(("autofit_target", "users_")):
            del sys.modules[name]


@pytest.mark.parametrize(
    "target",
    ["train.py:make_workload", "train.py", "./train.py", "{folder}/train.py", "{folder}/train.py:make_workload"],
)
def test_a_file_is_found_with_and_without_the_function(write: Write, tmp_path: Path, target: str) -> None:
    write("train.py", GOOD)
    made = factory.make(target.format(folder=tmp_path))
    assert isinstance(made["model"], nn.Linear)
    assert made["loader"] == [1, 2]


def test_a_module_is_found_in_the_working_directory(write: Write) -> None:
    write("users_package/__init__.py", "")
    write("users_package/train.py", GOOD)
    assert factory.make("users_package.train")["loader"] == [1, 2]
    assert factory.make("users_package.train:make_other")["global_batch_size"] == 8


def test_arguments_reach_the_function(write: Write) -> None:
    write("train.py", GOOD)
    assert factory.make("train.py", {"width": 7})["model"].in_features == 7


def test_a_file_may_import_its_neighbours(write: Write) -> None:
    write("inner/users_helper.py", "batches = [5]")
    write("inner/train.py", "from torch import nn\nimport users_helper\n"
          "def make_workload():\n    return nn.Linear(1, 1), users_helper.batches")  # fmt: skip
    assert factory.make("inner/train.py")["loader"] == [5]


@pytest.mark.parametrize(
    ("target", "found", "following"),
    [
        ("absent.py", "does not exist", "expected a Python file"),
        ("trian.py:make", "does not exist", "Did you mean train.py?"),
        ("absent/deep.py:make", "does not exist", "expected a Python file"),
        ("./notes.txt", "cannot be loaded as Python", "ends in .py"),
        ("users_absent:make", "module 'users_absent' was not found", "on the import path"),
        ("users_package.absent", "module 'users_package.absent' was not found", "ends in .py"),
        ("train.py:make_worklaod", "has no function 'make_worklaod'", "Did you mean make_workload"),
        ("train.py:zzz", "has no function 'zzz'", "name another function"),
        ("train.py:not_callable", "has no function 'not_callable'", ""),
        (":make", "has no file or module name", "train.py:make_workload"),
    ],
)
def test_what_is_not_there_is_a_usage_error(write: Write, target: str, found: str, following: str) -> None:
    write("train.py", GOOD)
    write("notes.txt", "")
    write("users_package/__init__.py", "")
    with pytest.raises(UsageError) as error:
        factory.make(target)
    assert found in str(error.value)
    assert following in str(error.value)


def user_error(target: str) -> UserCodeError:
    with pytest.raises(UserCodeError) as error:
        factory.make(target)
    return error.value


def test_an_exception_of_the_function_is_shown_with_the_users_frames_only(write: Write) -> None:
    write("train.py", "def inner():\n    raise KeyError('lost')\n\ndef make_workload():\n    return inner()\n")
    error = user_error("train.py:make_workload")
    assert "train.py:make_workload raised KeyError: 'lost'" in str(error)
    assert "in make_workload" in error.traceback_text
    assert "in inner" in error.traceback_text
    assert "factory.py" not in error.traceback_text
    assert "importlib" not in error.traceback_text


def test_an_exception_while_importing_is_the_users(write: Write) -> None:
    write("train.py", "x = 1\ny = 1 / 0\n")
    error = user_error("train.py")
    assert "importing train.py raised ZeroDivisionError" in str(error)
    assert "line 2" in error.traceback_text
    assert "factory.py" not in error.traceback_text
    assert "importlib" not in error.traceback_text


def test_a_file_that_cannot_be_parsed_shows_the_line(write: Write) -> None:
    write("train.py", "def make_workload(:\n")
    error = user_error("train.py")
    assert "SyntaxError" in str(error)
    assert 'train.py", line 1' in error.traceback_text
    assert "factory.py" not in error.traceback_text
    assert "importlib" not in error.traceback_text


def test_a_module_that_lacks_a_dependency_is_the_users_error_and_no_wrong_path(write: Write) -> None:
    write("users_train.py", "import users_dependency\n")
    error = user_error("users_train")
    assert "No module named 'users_dependency'" in str(error)


def test_an_exit_at_import_is_the_users_error(write: Write) -> None:
    write("train.py", "import sys\nsys.exit(2)\n")
    assert "raised SystemExit: 2" in str(user_error("train.py"))


@pytest.mark.parametrize("name", ["GeneratorExit", "KeyboardInterrupt", "BaseException"])
def test_whatever_a_factory_raises_is_the_users_error(name: str, write: Write) -> None:
    write("train.py", f"def make_workload():\n    raise {name}('no data')\n")
    assert f"raised {name}: no data" in str(user_error("train.py"))


def test_wrong_arguments_are_shown(write: Write) -> None:
    write("train.py", GOOD)
    with pytest.raises(UserCodeError, match="unexpected keyword argument 'depth'"):
        factory.make("train.py", {"depth": 3})


def test_a_workload_becomes_its_arguments() -> None:
    workload = Workload(nn.Linear(2, 2), [1], global_batch_size=8, max_grad_norm=1.0)
    arguments = factory.as_arguments(workload, "train.py")
    assert Workload(**arguments) == workload


def test_a_dict_of_arguments_is_taken_as_it_is() -> None:
    model = nn.Linear(2, 2)
    made = {"model": model, "loader": [1], "time_budget": "5min"}
    arguments = factory.as_arguments(made, "train.py")
    assert arguments == made
    assert arguments is not made


@pytest.mark.parametrize(
    ("made", "found"),
    [
        (None, "a NoneType"),
        ({"model": nn.Linear(1, 1)}, "a dict"),
        ((nn.Linear(1, 1), [1], 3), "a tuple of 3"),
        (([1], nn.Linear(1, 1)), "a tuple of 2"),
        (nn.Linear(1, 1), "a Linear"),
    ],
)
def test_rubbish_is_refused(made: object, found: str) -> None:
    with pytest.raises(WorkloadError) as error:
        factory.as_arguments(made, "train.py:make")
    assert f"train.py:make returned {found}; expected an autofit.Workload" in str(error.value)
