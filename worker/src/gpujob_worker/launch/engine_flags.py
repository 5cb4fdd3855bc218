"""Holds inference engines on a shared GPU to their reservation, through their own memory flags, and
replicas on one host to their own addresses.

vLLM: `--gpu-memory-utilization`, a fraction of the GPU's memory for all of one instance, 0.92 by
default. `--kv-cache-memory-bytes` takes its place. Source: vllm/config/cache.py, commit 002f10e0.

SGLang: `--mem-fraction-static`, a fraction for weights and KV cache. CUDA graphs and activations
come in addition. Source: docs/advanced_features/hyperparameter_tuning.md, commit 21ff1af0. The
fraction is of the memory that is free at the start, so beside others the engine takes less than
its reservation. Source: model_runner_kv_cache_mixin.py, commit 001ccef0.

Both listen on the address after `--host`. On process nodes pods share a host, and the second
replica could not listen on all of its addresses.

The CUDA context of the engine is assumed to be counted by neither. No engine was run with these
flags.
"""

import ipaddress
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpujob_api.quantities import format_memory
from gpujob_worker.device.cuda_context import CONTEXT_BYTES_ASSUMED

_THOUSANDTHS = 1000
# argparse accepts a flag's prefix. A shorter word is not taken for one.
_PREFIX_MIN = len("--gpu-")
_HOST = "--host"
_OPTIONS_WITH_VALUE = ("-W", "-X")


@dataclass(frozen=True, slots=True)
class Engine:
    """An engine and its flag. `others` replace the flag. `share_percent` is the part of a
    reservation that the flag is about.
    """

    name: str
    flag: str
    share_percent: int = 100
    others: tuple[str, ...] = ()


VLLM = Engine("vLLM", "--gpu-memory-utilization", others=("--kv-cache-memory-bytes",))
# SGLang's own default of a whole GPU. Source: docs/advanced_features/server_arguments.md, commit
# 004813e1.
SGLANG = Engine("SGLang", "--mem-fraction-static", share_percent=90)

_MODULES = {"vllm.entrypoints.openai.api_server": VLLM, "sglang.launch_server": SGLANG}


@dataclass(frozen=True, slots=True)
class Held:
    """A command, and a line about its memory. The line is empty for other programs."""

    command: Sequence[str]
    line: str = ""


def hold(command: Sequence[str], limit_bytes: int | None, total_bytes: Callable[[], int]) -> Held:
    """Returns the command, with the memory flag if it starts an engine on a shared GPU.

    `limit_bytes` is None if the GPU is not shared. `total_bytes` returns the memory of the GPU. It
    is called for engines only, and may raise anything: the command is then left as it is.
    """
    engine = engine_of(command)
    if engine is None or limit_bytes is None:
        return Held(command)
    given = given_flag(command, engine)
    if given is not None:
        return Held(command, f"{engine.name}: memory as in the command, by {given}")
    try:
        total = total_bytes()
    except Exception as error:
        reason = f"the GPU's memory is not known: {type(error).__name__}: {error}"
        return Held(command, f"{engine.name}: without {engine.flag}, because {reason}")
    return with_flag(command, engine, limit_bytes, total)


def placed_at(command: Sequence[str], host: str) -> Held:
    """Returns the command, with `--host` if it starts an engine on a process node.

    `host` is the address of the pod. It is a loopback address there, and only there.
    """
    engine = engine_of(command)
    if engine is None or not _is_loopback(host):
        return Held(command)
    given = next((word for word in command[1:] if word.partition("=")[0] == _HOST), None)
    if given is not None:
        text = f"the address is that of the command; of several replicas each needs {_HOST} {host}"
        return Held(command, f"{engine.name}: {text}, its own")
    return Held([*command, _HOST, host], f"{engine.name}: {_HOST} {host}, the replica's address")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def with_flag(command: Sequence[str], engine: Engine, limit_bytes: int, total_bytes: int) -> Held:
    """Returns the command with the flag, or without it if the reservation permits no fraction.

    fraction = share * (limit - context) / total, rounded down to three digits. All in bytes.
    """
    left_bytes = limit_bytes - CONTEXT_BYTES_ASSUMED
    thousandths = _THOUSANDTHS * engine.share_percent * left_bytes // (100 * max(1, total_bytes))
    bounds = f"{format_memory(limit_bytes)} of {format_memory(total_bytes)} are reserved"
    if not 1 <= thousandths < _THOUSANDTHS:
        return Held(command, f"{engine.name}: without {engine.flag}, because {bounds}")
    value = f"{thousandths / _THOUSANDTHS:.3f}"
    return Held([*command, engine.flag, value], f"{engine.name}: {engine.flag} {value}, {bounds}")


def engine_of(command: Sequence[str]) -> Engine | None:
    """Returns the engine that the command starts itself. One started by a shell is not found."""
    program = Path(command[0]).name
    if program == "vllm":
        return VLLM if command[1:2] == ["serve"] else None
    return _MODULES.get(_module(command)) if program.startswith("python") else None


def given_flag(command: Sequence[str], engine: Engine) -> str | None:
    """Returns the argument that sets the engine's memory already, or None.

    Both engines also accept underscores, prefixes and `=`.
    """
    for word in command[1:]:
        name = word.partition("=")[0].replace("_", "-")
        if name in engine.others or (len(name) >= _PREFIX_MIN and engine.flag.startswith(name)):
            return word
    return None


def _module(command: Sequence[str]) -> str:
    """Returns the module after `-m`, or an empty text if Python runs something else."""
    words = iter(command[1:])
    for word in words:
        if word == "-m":
            return next(words, "")
        if word in _OPTIONS_WITH_VALUE:
            next(words, "")
        elif not word.startswith("-") or word == "-c":
            return ""
    return ""
