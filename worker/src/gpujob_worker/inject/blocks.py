"""Finds the repeated blocks of a model: layers of a transformer, stages of a network."""

import torch


def repeated_blocks(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Returns the children of the list of equal modules with the most parameters; empty without
    one.
    """
    best: list[torch.nn.Module] = []
    best_size = 0
    for container in module.modules():
        if not isinstance(container, (torch.nn.ModuleList, torch.nn.Sequential)):
            continue
        children = list(container.children())
        kinds = {type(child) for child in children}
        size = sum(_size(parameter) for parameter in container.parameters())
        # A list of single layers (embedding tables, for example) has nothing worth recomputing.
        nested = all(next(child.children(), None) is not None for child in children)
        if len(children) > 1 and len(kinds) == 1 and nested and size > best_size:
            best, best_size = children, size
    return best


def _size(parameter: torch.nn.Parameter) -> int:
    """Returns the number of elements, or 0 for a parameter that the first call creates."""
    return 0 if torch.nn.parameter.is_lazy(parameter) else parameter.numel()
