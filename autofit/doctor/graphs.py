"""Graphs: what the graph of a tensor holds, and how large it is."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import reduce
from operator import or_
from typing import Any

import torch

from autofit.torch_internals import saved_by, sequence_number

ACCUMULATES = 2**63
"""Sequence numbers from here on are those of nodes that add to a parameter's gradient."""
NODE_BYTES = 530
"""Main memory of a node whose saved tensors are freed: 82 KiB for the 158 nodes of a GPT-2 with two layers (torch
2.13)."""


def nodes_of(roots: Iterable[Any], seen: set[Any] | None = None) -> Iterator[Any]:
    """Yields each node of the graphs of some nodes once, except those that are in `seen`, which they are added to."""
    seen, waiting = set[Any]() if seen is None else seen, [root for root in roots if root is not None]
    while waiting:
        node = waiting.pop()
        if node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [each for each, _ in node.next_functions if each is not None]


class DatedGraphs:
    """Tells in which step the nodes of graphs were made.

    Args:
        begins: the sequence number with which each step began.
    """

    def __init__(self, begins: Sequence[int]) -> None:
        self._begins, self._reached = begins, dict[Any, int]()

    def step_of(self, node: Any) -> int:
        """Returns the step of a node, from 1; 0 for nodes from before, and for those that add to a gradient."""
        number = sequence_number(node)
        return 0 if number >= ACCUMULATES else bisect_right(self._begins, number)

    def steps(self, root: Any) -> int:
        """Returns the steps of all nodes of a graph, as bits of a number."""
        reached, waiting = self._reached, [root]
        while waiting:
            following = [each for each, _ in waiting[-1].next_functions if each is not None]
            if missing := [each for each in following if each not in reached]:
                waiting += missing
                continue
            node = waiting.pop()
            reached[node] = reduce(or_, (reached[each] for each in following), 1 << self.step_of(node))
        return reached[root]


def saved_tensors(root: Any, seen: set[Any] | None = None) -> Iterator[torch.Tensor]:
    """Yields the tensors that a graph keeps for its backward pass, but not those that a pass has freed.

    Nodes that are in `seen` are left out; the others are added to it.
    """
    for node in nodes_of([root], seen):
        for value in saved_by(node):
            # What hooks have saved instead of a tensor may be anything. To ask them for the tensor would run a forward
            # pass again where activations are checkpointed.
            for each in value if isinstance(value, tuple) else (value,):
                if isinstance(each, torch.Tensor):
                    yield each
