"""torch.compile of the root, whole or block by block, for one batch shape or for any size.

Compiled code is kept in a directory next to the checkpoints, where the next attempt finds it.
"""

import shlex
import shutil
import sys
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager, nullcontext
from os import environ
from pathlib import Path
from typing import Any

import torch

from gpujob_worker.inject.blocks import repeated_blocks
from gpujob_worker.inject.compilations import Compilations
from gpujob_worker.inject.guards import parallel_wrapper

ENV_CACHE = "TORCHINDUCTOR_CACHE_DIR"
CACHE_FOLDER = "compiled"


def compile_refusal(module: torch.nn.Module, device: torch.device) -> str | None:
    """Returns why compiling is impossible before any trial, or None."""
    wrapper = parallel_wrapper(module)
    if wrapper is not None:
        return f"{wrapper} is left as it is"
    if not sys.platform.startswith("linux"):
        return f"not tried on {sys.platform}"
    if device.type == "cpu":
        compiler = environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
        if not compiler or shutil.which(compiler) is None:
            return "no C++ compiler (g++, clang++ or CXX) on PATH"
    return _triton_refusal() if device.type == "cuda" else None


def blocks_refusal(module: torch.nn.Module) -> str | None:
    """Returns why compiling block by block is impossible, or None."""
    blocks = repeated_blocks(module)
    if not blocks:
        return "no list of two or more like blocks with parameters"
    if any("_compiled_call_impl" in vars(block) for block in blocks):
        return "the blocks are called in another way already"
    return None


def graphs_refusal(
    device: torch.device, rows_per_step: int | None, limit: bool, *, any_size: bool = False
) -> str | None:
    """Returns why compiled steps must not be replayed as CUDA graphs, or None."""
    if device.type != "cuda":
        return f"they exist on CUDA GPUs; this is {device.type}"
    if any_size:
        return "batches differ in size, and each size would have a graph of its own"
    if rows_per_step is not None:
        return "a split batch runs the graph again before its outputs are used"
    return "their memory pools are not counted in the memory limit" if limit else None


def compile_module(
    module: torch.nn.Module,
    *,
    graphs: bool = False,
    same_draws: bool = False,
    any_size: bool = False,
    noting: Compilations | None = None,
) -> Callable[..., Any]:
    """Returns the compiled call. The first run compiles, and may raise any exception.

    With `same_draws` it draws the random numbers of eager code, so that both can be compared. With
    `any_size` one compilation serves batches of all sizes. `noting` counts the compilations.
    """
    call: Callable[..., Any] = module._call_impl  # pyright: ignore[reportPrivateUsage]
    if graphs:
        return _graphs(call)
    options: dict[str, Any] = {"options": {"fallback_random": True}} if same_draws else {}
    compiled: Callable[..., Any] = torch.compile(call, dynamic=any_size, **options)
    return compiled if noting is None else _counted(compiled, noting)


def _counted(compiled: Callable[..., Any], compilations: Compilations) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        with compilations.counted():
            return compiled(*args, **kwargs)

    return run


def _graphs(call: Callable[..., Any]) -> Callable[..., Any]:
    compiled = torch.compile(call, dynamic=False, mode="reduce-overhead")

    def replay(*args: Any, **kwargs: Any) -> Any:
        torch.compiler.cudagraph_mark_step_begin()
        return compiled(*args, **kwargs)

    return replay


class CompiledBlocks:
    """Compiled calls of equal blocks, active while the root's call runs.

    Equal blocks share one graph, so that compilation takes a fraction of the time for the whole
    model.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        *,
        same_draws: bool = False,
        any_size: bool = False,
        noting: Compilations | None = None,
    ) -> None:
        how: dict[str, Any] = {"same_draws": same_draws, "any_size": any_size}
        blocks = repeated_blocks(module)
        self._calls = [(block, compile_module(block, **how)) for block in blocks]
        self._noting = noting
        self._traced = False

    def __len__(self) -> int:
        return len(self._calls)

    @contextmanager
    def in_force(self) -> Generator[None]:
        for block, call in self._calls:
            block._compiled_call_impl = call  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        try:
            counted = nullcontext() if self._noting is None else self._noting.counted()
            with counted, nullcontext() if self._traced else _without_leaf_warning():
                yield
            self._traced = True
        finally:
            for block, _ in self._calls:
                vars(block).pop("_compiled_call_impl", None)


@contextmanager
def _without_leaf_warning() -> Generator[None]:
    """Suppresses a warning: tracing a block reads `.grad` of its input, which is not a leaf.

    The script does not cause that.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor that is not a")
        yield


def keep_compiled_in(folder: Path | None) -> str | None:
    """Keeps compiled code for the next attempt. A directory that the user has set stays in use.

    The directory contains code and is private to this user. Returns the directory, or None.
    """
    # Torch puts the path unquoted into the command line of the C++ compiler.
    if folder is None or ENV_CACHE in environ or shlex.quote(str(folder)) != str(folder):
        return None
    place = folder / CACHE_FOLDER
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError:
        return None
    environ[ENV_CACHE] = str(place)
    return str(place)


def _triton_refusal() -> str | None:
    """Returns why triton cannot compile, or None.

    When the first kernel runs, triton builds its launcher with a C compiler. It takes `CC` as the
    name of a program, whatever it is, and searches for other compilers only without it.
    """
    if not _has_triton():
        return "triton is not installed"
    names = [environ["CC"]] if "CC" in environ else ["gcc", "clang"]
    if not any(map(shutil.which, names)):
        return "no C compiler (gcc, clang or CC) on PATH"
    return None


def _has_triton() -> bool:
    from torch.utils._triton import has_triton

    return has_triton()
