"""What makes two jobs the same workload: one that takes the same GPU memory and time for a step.

Either the user names it (`spec.workload`), or it is the image, command and environment without what
differs between the runs of a sweep. What `spec.optimize` asks for counts in both cases.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from gpujob_api.codec import encode
from gpujob_api.gpujob import GPUJobSpec
from gpujob_api.optimize import Optimize
from gpujob_operator.decide.measurement.command_options import Decides, options, variable_decides

_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


class Workload(NamedTuple):
    # SHA-256 (16 hex digits) of what makes two runs the same workload.
    fingerprint: str
    # What of the command decides how long a run takes; empty where nothing says so. Runs of one
    # workload with different ones take different times.
    run_length: str


def workload_of(spec: GPUJobSpec) -> Workload:
    """What a run is a run of, and how long it is."""
    worker = spec.worker_container()
    return _workload(
        (spec.workers, spec.gpus_per_worker),
        spec.optimize,
        spec.workload,
        str(worker.get("image", "")),
        _texts(worker, "command"),
        _texts(worker, "args"),
        tuple(_plain(worker)),
    )


def program_of(spec: GPUJobSpec) -> tuple[str, ...]:
    """What runs of one program have in common, whatever its options: the image, and the words of
    the command before the first option."""
    worker = spec.worker_container()
    words = [str(worker.get("image", ""))]
    for word in (*_texts(worker, "command"), *_texts(worker, "args")):
        if word.startswith("-"):
            break
        words.append(word)
    return tuple(words)


_Texts = tuple[str, ...]


# Thousands of jobs have the same command.
@lru_cache(maxsize=1024)
def _workload(
    sizes: tuple[int, int],
    optimize: Optimize,
    workload: str | None,
    image: str,
    command: _Texts,
    arguments: _Texts,
    variables: tuple[tuple[str, str], ...],
) -> Workload:
    of_command, of_arguments = _by_use(options(command)), _by_use(options(arguments))
    of_variables = _by_use((variable_decides(n), f"{n}={value}") for n, value in variables)
    identity: dict[str, object] = {
        "image": _content(image),
        "command": of_command.step,
        "args": of_arguments.step,
        "env": sorted(text.split("=", 1) for text in of_variables.step),
    }
    if workload is not None:
        identity = {"workload": workload}
    workers, gpus_per_worker = sizes
    identity |= {"workers": workers, "gpusPerWorker": gpus_per_worker}
    identity["batchTotal"] = optimize.batch_size.total
    if asked := _asked(optimize):
        identity["optimize"] = asked
    return Workload(
        fingerprint=hashlib.sha256(_JSON.encode(identity).encode()).hexdigest()[:16],
        run_length=" ".join((*of_command.length, *of_arguments.length, *of_variables.length)),
    )


def _asked(optimize: Optimize) -> dict[str, object]:
    """Every field that is not Auto, as in the spec; but `total`, which every identity has."""
    asked = encode(optimize)
    asked |= asked.pop("batchSize")
    asked.pop("total", None)
    return {name: value for name, value in asked.items() if value != "Auto"}


def _content(image: str) -> str:
    """A digest says what is in an image, whatever its name and tag are."""
    return image.rpartition("@")[2]


class _ByUse(NamedTuple):
    """Parts of a command by what they decide."""

    step: tuple[str, ...]
    length: tuple[str, ...]


def _by_use(found: Iterable[tuple[Decides, str]]) -> _ByUse:
    parts = list(found)
    return _ByUse(
        tuple(text for decides, text in parts if decides is Decides.STEP),
        tuple(text for decides, text in parts if decides is Decides.LENGTH),
    )


def _texts(worker: Mapping[str, Any], field: str) -> _Texts:
    return tuple([str(word) for word in worker.get(field) or ()])


def _plain(worker: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Environment variables whose value stands in the template."""
    for entry in worker.get("env") or ():
        if "value" in entry:
            yield str(entry.get("name", "")), str(entry["value"])
