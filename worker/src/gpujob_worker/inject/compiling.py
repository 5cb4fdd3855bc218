"""torch.compile of the root: whether it can be, and the compiled call for one batch shape."""

import shutil
import sys
from collections.abc import Callable
from os import environ
from typing import Any

import torch

from gpujob_worker.inject.guards import parallel_wrapper
from gpujob_worker.inject.root import Root


def compile_refusal(root: Root) -> str | None:
    """Why compiling is out of the question, before any try."""
    wrapper = parallel_wrapper(root.module)
    if wrapper is not None:
        return f"{wrapper} is left as it is"
    if not sys.platform.startswith("linux"):
        return f"not tried on {sys.platform}"
    if root.device.type == "cpu":
        compiler = environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
        if not compiler or shutil.which(compiler) is None:
            return "no C++ compiler (g++, clang++ or CXX) on PATH"
    elif root.device.type == "cuda" and not _has_triton():
        return "triton is not installed"
    return None


def compile_root(root: Root) -> Callable[..., Any]:
    """The compiled call. Compilation itself happens at its first run, and may raise anything."""
    return torch.compile(root.module._call_impl, dynamic=False)  # pyright: ignore[reportPrivateUsage]


def _has_triton() -> bool:
    from torch.utils._triton import has_triton

    return has_triton()
