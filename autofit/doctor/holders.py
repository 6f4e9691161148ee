"""Holders: by which variable the user's code holds an allocation.

The search goes from variables to tensors: `gc.get_referrers` does not see the local variables of running frames.
"""

import re
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from inspect import CO_OPTIMIZED
from itertools import chain
from traceback import walk_tb
from types import FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from autofit.doctor.graphs import nodes_of, saved_tensors
from autofit.doctor.sites import Owner, label, line_of, owner, owner_of
from autofit.workloads.factory import LOADED

DEPTH = 5
"""Maximum number of containers and attributes between a variable and a tensor."""
ITEMS = 2000
"""Maximum number of items of a container that are looked at: the last ones of a list."""
OBJECTS = 200_000
"""Maximum number of objects that are looked at for one observation."""
_COUNTED = 3
"""References to a copy of local variables: the frame's, a variable, and an argument."""
_CONTAINERS = (Mapping, list, tuple, set, frozenset, deque)
_PLAIN = (str, bytes, int, float, complex, bool, type(None), type)
_SKIPPED = ("types", "_frozen_importlib", "numpy", "logging", "threading", "asyncio")
"""Modules whose objects hold no tensors of the user's, or too many other objects."""
_OF_MODULES = frozenset(("_parameters", "_buffers", "_modules"))

_HOOK = "a hook of "
_INNER = re.compile(r"[\[.]")
"""What follows a variable in a path."""

Handle = Callable[[torch.Tensor], int | None]
"""Returns the handle of a tensor's allocation; None if it is not known."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A variable that holds an allocation.

    Attributes:
        path: the variable and the way from it, such as "state['losses'][7]".
        where: the function and line of a local variable, or the module of a global one; "" for others.
        size: number of items of the innermost list or deque on the way; 0 without one.
        bounded: whether that one is a deque with a maximum length.
        graph: whether the graph of the tensor at `path` holds the allocation, and not that tensor itself.
        nodes: number of nodes of that graph; 0 without one.
        leaf: whether the tensor at `path` gets a gradient of its own, so that its graph holds it too, or is such a one.
        others: further variables that hold the allocation.
    """

    path: str
    where: str = ""
    size: int = 0
    bounded: bool = False
    graph: bool = False
    nodes: int = 0
    leaf: bool = False
    others: "tuple[Holder, ...]" = ()

    @property
    def name(self) -> str:
        """The variable itself."""
        return re.split(_INNER, self.path, maxsplit=1)[0]

    @property
    def variable(self) -> str:
        """The variable itself, and where it is."""
        return f"{self.name}{self.where}"

    @property
    def container(self) -> str:
        """The path without the place in its last container, such as "state['losses']"."""
        return self.path.rpartition("[")[0] if self.path.endswith("]") else self.path

    @property
    def is_attribute(self) -> bool:
        """Whether the variable holds an object that may have to stay, of which an attribute holds the allocation."""
        return self.path.startswith(f"{self.name}.")

    def __str__(self) -> str:
        items = f" (of {self.size} items)" if self.size else ""
        return f"{'the graph of ' if self.graph else ''}`{self.path}`{items}{self.where}"


def find_holders(handle_of: Handle, wanted: Iterable[int], roots: Mapping[str, object]) -> dict[int, Holder]:
    """Returns the holders of some allocations, as far as the user's code holds them.

    Looked at are the local variables of the user's frames in all threads and in those that the exception which is
    handled has left, the globals of their modules, of those in `roots` and of those that define what is there, and
    `roots` by name. A variable that holds a tensor itself goes before one whose
    graph does.
    """
    left, found = set(wanted), dict[int, Holder]()
    others = defaultdict[int, dict[str, Holder]](dict)
    graphs, gradients = list[tuple[Holder, torch.Tensor]](), set[int]()
    if not left:
        return found
    for holder, tensor in held(roots):
        if (handle := handle_of(tensor)) in left:
            left.discard(handle)
            found[handle] = replace(holder, nodes=_nodes(tensor), leaf=tensor.is_leaf and tensor.requires_grad)
        elif handle in found and holder.variable != found[handle].variable:
            others[handle].setdefault(holder.variable, holder)
        if tensor.grad_fn is not None:
            graphs.append((holder, tensor))
        gradients |= _gradient(handle_of, tensor)
    found |= {handle: replace(found[handle], others=tuple(more.values())) for handle, more in others.items()}
    found |= {handle: replace(each, leaf=True) for handle, each in found.items() if handle in gradients}
    seen = set[Any]()  # a node that two graphs share belongs to the first
    for holder, tensor in graphs if left else ():
        saved = (handle_of(each) for each in saved_tensors(tensor.grad_fn, seen))
        if handles := {handle for handle in saved if handle in left}:
            left -= handles
            found |= dict.fromkeys(handles, replace(holder, graph=True, nodes=_nodes(tensor)))
    return found


def _gradient(handle_of: Handle, tensor: torch.Tensor) -> set[int]:
    """Returns the allocation of a leaf's gradient, which the leaf holds; none for another tensor."""
    handle = handle_of(tensor.grad) if tensor.is_leaf and tensor.grad is not None else None
    return set() if handle is None else {handle}


def held(roots: Mapping[str, object]) -> Iterator[tuple[Holder, torch.Tensor]]:
    """Yields the tensors that variables and roots hold, and how."""
    reached = ((holder, value) for holder, value in _reached(roots) if isinstance(value, torch.Tensor))
    yield from ((holder, tensor) for holder, tensor in reached if tensor.layout is torch.strided)


def paths_to(modules: Iterable[nn.Module], roots: Mapping[str, object]) -> dict[int, str]:
    """Returns how the user's code reaches some modules, such as "trainer.target", by id, as far as it holds them."""
    left, found, seen = {id(each) for each in modules}, dict[int, str](), set[int]()
    for holder, value in _reached(roots):
        if isinstance(value, nn.Module) and id(value) not in seen:
            seen.add(id(value))
            with suppress(Exception):  # a module of the user's may not be complete
                for name, part in value.named_modules():
                    if id(part) in left:
                        left.discard(id(part))
                        found[id(part)] = f"{holder.path}.{name}" if name else holder.path
        if not left:
            break
    return found


def _reached(roots: Mapping[str, object]) -> Iterator[tuple[Holder, torch.Tensor | nn.Module]]:
    """Yields the tensors and modules that variables and roots hold, and how. Modules inside others are not entered."""
    seen = dict[int, int]()  # how far the walk went on from an object, by its id
    for name, where, value in (*_variables(roots), *((name, "", value) for name, value in roots.items())):
        yield from _walked(value, Holder(name, where), seen)


def unlisted(model: nn.Module, name: str) -> Iterator[tuple[str, nn.Module | torch.Tensor]]:
    """Yields what a model could train but does not list, with the way to it, such as "Net.layers[0]".

    These are modules in lists, dicts and the like that are plain attributes, and tensors in them, or attributes
    themselves, that get a gradient.
    """
    seen: set[int] = {id(each) for each in (*model.modules(), *model.parameters())}
    waiting = deque((value, holder, DEPTH) for value, holder in _attributes(model, Holder(name)))
    while waiting and len(seen) < OBJECTS:
        value, holder, depth = waiting.popleft()
        if id(value) in seen or isinstance(value, _PLAIN):
            continue
        seen.add(id(value))
        if isinstance(value, nn.Module) or (isinstance(value, torch.Tensor) and value.requires_grad and value.is_leaf):
            yield holder.path, value
        elif depth and isinstance(value, _CONTAINERS):
            waiting += [(each, further, depth - 1) for each, further in _inside(value, holder)]


def _nodes(tensor: torch.Tensor) -> int:
    return sum(1 for _ in nodes_of([tensor.grad_fn]))


def _variables(roots: Mapping[str, object]) -> Iterator[tuple[str, str, object]]:
    """Yields name, place and value of the local variables of the user's frames, then of all of the user's globals."""
    # Only the user's frames: a list with the frame of this function would be a reference cycle, and keep tensors.
    running = (frame for top in sys._current_frames().values() for frame in _outwards(top))
    frames = chain(running, _left_frames(sys.exception()))
    both = [frame for frame in frames if owner(frame) in (Owner.USER, Owner.LIBRARY)]
    users = [frame for frame in both if owner(frame) is Owner.USER]
    trainers = [frame for frame in both if owner(frame) is Owner.LIBRARY and "self" in frame.f_code.co_varnames]
    del running, frames, both
    for frame in users:
        if frame.f_code.co_name == "<module>":
            continue  # its local variables are globals
        where = f" in {frame.f_code.co_name} ({line_of(frame)})"
        yield from ((name, where, value) for name, value in _locals(frame).items())
    ended = [vars(value) for value in roots.values() if isinstance(value, ModuleType)]
    modules = [frame.f_globals for frame in users] + ended + [function.__globals__ for function in _functions(roots)]
    for names in {id(each): each for each in modules}.values():
        name = names.get("__name__")
        where = f" in {label(names['__file__']) if name == LOADED else name}"
        yield from ((name, where, value) for name, value in list(names.items()) if not name.startswith("__"))
    for frame in trainers:  # an object of a class of the user's, whose base class in a library runs the loop
        value = _locals(frame).get("self")
        if _is_users(type(value)):
            yield type(value).__name__, "", value


def _is_users(kind: type[Any]) -> bool:
    """Returns whether a class is in a file of the user's."""
    file = getattr(sys.modules.get(kind.__module__), "__file__", None)
    return isinstance(file, str) and owner_of(file) is Owner.USER


def _functions(roots: Mapping[str, object]) -> Iterator[FunctionType]:
    """Yields the user's functions among some objects: between steps, none of their frames is running."""
    for value in roots.values():
        kinds = {type(part) for part in value.modules()} if isinstance(value, nn.Module) else ()
        for each in (value, *(kind.forward for kind in kinds)):
            function = each.__func__ if isinstance(each, MethodType) else each
            if isinstance(function, FunctionType) and owner_of(function.__code__.co_filename) is Owner.USER:
                yield function


def _locals(frame: FrameType) -> dict[str, object]:
    """Returns the local variables of a frame.

    Before Python 3.13, the frame of a function keeps a copy of what it was asked for, and so keeps tensors alive. The
    copy is emptied, unless someone else has asked for it too.
    """
    copied, code = frame.f_locals, frame.f_code
    found = dict(copied)
    if type(copied) is dict and code.co_flags & CO_OPTIMIZED and sys.getrefcount(copied) <= _COUNTED:
        for name in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
            copied.pop(name, None)
    return found


def _left_frames(error: BaseException | None) -> Iterator[FrameType]:
    """Yields the frames that an exception has left, which still hold their variables."""
    yield from (frame for frame, _ in walk_tb(None if error is None else error.__traceback__))


def _outwards(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def _walked(variable: object, named: Holder, seen: dict[int, int]) -> Iterator[tuple[Holder, torch.Tensor | nn.Module]]:
    """Walks from a variable to tensors and modules.

    Each object is entered once, and again if a later way to it reaches further than the `seen` ones.
    """
    waiting = deque([(variable, named, DEPTH)])
    while waiting and len(seen) < OBJECTS:
        value, holder, depth = waiting.popleft()
        if isinstance(value, _PLAIN):
            continue
        if isinstance(value, (torch.Tensor, nn.Module)):
            yield holder, value
        if isinstance(value, torch.Tensor):
            continue
        before = seen.get(id(value), 0)
        if depth > before:
            seen[id(value)] = depth
            inside = (pair for pair in _inside(value, holder) if not (before and isinstance(pair[0], torch.Tensor)))
            waiting += [(each, further, depth - 1) for each, further in inside]
            waiting += [(each, further, depth - 1) for each, further in _of_classes(type(value), seen)]


def _of_classes(kind: type[Any], seen: dict[int, int]) -> Iterator[tuple[object, Holder]]:
    """Yields the attributes of a class of the user's and of its bases, once."""
    for each in kind.__mro__:
        if id(each) not in seen and _is_users(each):
            seen[id(each)] = DEPTH
            for name, value in list(vars(each).items()):
                if not name.startswith("__") and not callable(value):
                    yield value, Holder(f"{each.__name__}.{name}")


def _inside(value: object, holder: Holder) -> Iterator[tuple[object, Holder]]:
    """Yields what an object holds, and how."""
    path = holder.path
    try:
        if isinstance(value, nn.Module):
            yield from _of_module(value, holder)
        elif isinstance(value, Mapping):
            items = list(value.items())[-ITEMS:]
            yield from ((each, replace(holder, path=f"{path}[{_key(key)}]")) for key, each in items)
        elif isinstance(value, _CONTAINERS):
            whole = list(value)
            size = 0 if isinstance(value, tuple) else len(whole)
            bounded = holder.bounded or (isinstance(value, deque) and value.maxlen is not None)
            first = max(len(whole) - ITEMS, 0)
            for place, each in enumerate(whole[first:], first):
                yield each, replace(holder, path=f"{path}[{place}]", size=size or holder.size, bounded=bounded)
        elif isinstance(value, (FunctionType, MethodType)):
            yield from _of_function(value, holder)
        elif type(value).__module__.partition(".")[0] not in (*_SKIPPED, "builtins"):
            names = list(getattr(value, "__dict__", {}).items())[:ITEMS]
            yield from ((each, replace(holder, path=f"{path}.{name}")) for name, each in names)
    except Exception:  # noqa: BLE001  # an object of the user's may raise anything when it is read
        return


def _of_module(module: nn.Module, holder: Holder) -> Iterator[tuple[object, Holder]]:
    """Yields attributes, hooks and buffers with a graph of a module and those inside it, but no parameters."""
    for name, buffer in module.named_buffers():
        if buffer.grad_fn is not None:
            yield buffer, Holder(f"{holder.path}.{name}", holder.where)
    yield from _attributes(module, holder)


def _attributes(module: nn.Module, holder: Holder) -> Iterator[tuple[object, Holder]]:
    """Yields the attributes and hooks of a module and those inside it, but none that torch lists."""
    for name, each in module.named_modules():
        path = f"{holder.path}.{name}" if name else holder.path
        for attribute, value in list(vars(each).items()):
            if attribute not in _OF_MODULES and not isinstance(value, nn.Module):
                shown = _HOOK if attribute.endswith("_hooks") else ""
                inner = path if shown else f"{path}.{attribute}"
                hooks: Sequence[object] = list(value.values()) if shown and isinstance(value, Mapping) else [value]
                yield from ((hook, Holder(f"{shown}{inner}", holder.where)) for hook in hooks)


def _of_function(value: FunctionType | MethodType, holder: Holder) -> Iterator[tuple[object, Holder]]:
    function = value.__func__ if isinstance(value, MethodType) else value
    if isinstance(value, MethodType):
        yield value.__self__, replace(holder, path=f"{holder.path}.__self__")
    hook = f", {holder.path}" if holder.path.startswith(_HOOK) else ""
    code = function.__code__
    where = f" in the closure of {function.__name__} ({label(code.co_filename)}:{code.co_firstlineno}){hook}"
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=False):
        try:
            yield cell.cell_contents, Holder(name, where)
        except ValueError:  # empty
            continue


def _key(key: object) -> str:
    return repr(key) if isinstance(key, (str, int)) else type(key).__name__
