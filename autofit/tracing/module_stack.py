"""ModuleStack: finds the module whose forward or backward pass is running."""

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook


class ModuleStack:
    """Finds the module whose forward or backward pass is running.

    In the backward pass, the module is found by sequence numbers. The nodes of the autograd graph are numbered in the
    order of their creation, so the nodes of a module's forward pass have numbers in known intervals.
    """

    def __init__(self) -> None:
        self._indices: dict[int, int] = {}
        self._stack: list[int] = []
        self._firsts: list[int] = []
        self._owners: list[int] = []

    @contextmanager
    def following(self, model: nn.Module) -> Iterator[tuple[str, ...]]:
        """Follows the modules of `model` while the context is open, and yields their names."""
        named = list(model.named_modules())
        self._indices = {id(module): index for index, (_, module) in enumerate(named)}
        hooks = [
            register_module_forward_pre_hook(self._enter),
            register_module_forward_hook(self._leave, always_call=True),
        ]
        try:
            yield tuple(name for name, _ in named)
        finally:
            for hook in hooks:
                hook.remove()

    def current(self) -> int:
        """Returns the index of the innermost module whose pass is running; -1 for none."""
        if self._stack:
            return self._stack[-1]
        if not in_backward():
            return -1
        node = torch._C._current_autograd_node()
        position = bisect_right(self._firsts, node._sequence_nr()) - 1 if node is not None else -1
        # Nodes that accumulate a parameter's gradient have the largest possible number. They belong to no module.
        accumulates = node is not None and node._sequence_nr() >= 2**63
        return -1 if position < 0 or accumulates else self._owners[position]

    def forget(self) -> None:
        """Forgets the sequence numbers of a finished step."""
        self._stack.clear()
        self._firsts.clear()
        self._owners.clear()

    def _enter(self, module: nn.Module, args: Any) -> None:
        index = self._indices.get(id(module))
        if index is not None:
            self._stack.append(index)
            self._begin_interval()

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        if self._stack and self._indices.get(id(module)) is not None:
            self._stack.pop()
            self._begin_interval()

    def _begin_interval(self) -> None:
        if not in_backward():
            self._firsts.append(torch._C._autograd._get_sequence_nr())
            self._owners.append(self._stack[-1] if self._stack else -1)


def in_backward() -> bool:
    """Returns whether this thread is running a backward pass of the autograd engine."""
    return bool(torch._C._current_graph_task_id() != -1)
