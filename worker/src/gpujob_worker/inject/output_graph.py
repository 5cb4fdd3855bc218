"""Finds which outputs of a call are computed from other outputs of it."""

from collections.abc import Mapping
from typing import Any

import torch

# A transformer of a hundred blocks has some thousands of nodes.
NODES_MAX = 50_000

Edge = tuple[Any, int]


def inner_outputs(outputs: Mapping[int, torch.Tensor]) -> dict[int, frozenset[int]]:
    """Returns, for each output by its key, the other outputs from which autograd computed it.

    A loss, for example, is computed from logits that the call returns too. Nothing more is found
    beyond NODES_MAX nodes of a graph.
    """
    if len(outputs) < 2:
        return {}
    edges = {_edge(output): index for index, output in outputs.items()}
    return {index: _reached(output, edges) - {index} for index, output in outputs.items()}


def _reached(output: torch.Tensor, edges: Mapping[Edge, int]) -> frozenset[int]:
    found: set[int] = set()
    seen: set[Any] = set()
    nodes: list[Any] = [output.grad_fn]
    while nodes and len(seen) < NODES_MAX:
        node = nodes.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        for edge in node.next_functions:
            if edge in edges:
                found.add(edges[edge])
            nodes.append(edge[0])
    return frozenset(found)


def _edge(output: torch.Tensor) -> Edge:
    return output.grad_fn, output.output_nr
