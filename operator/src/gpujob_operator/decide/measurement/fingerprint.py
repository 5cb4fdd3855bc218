"""What makes two jobs the same workload: one that takes the same GPU memory and time for a step.

Either the user names it (`spec.workload`), or it is the image, command and environment without what
differs between the runs of a sweep.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple

from gpujob_api.gpujob import GPUJobSpec
from gpujob_operator.decide.measurement.command_options import Decides, options, variable_decides

_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def fingerprint(spec: GPUJobSpec) -> str:
    """SHA-256 (16 hex digits) of what makes two runs the same workload."""
    identity: dict[str, object] = {
        "workers": spec.workers,
        "gpusPerWorker": spec.gpus_per_worker,
        "batchTotal": spec.optimize.batch_size.total,
        **_identity(spec),
    }
    return hashlib.sha256(_JSON.encode(identity).encode()).hexdigest()[:16]


def run_length(spec: GPUJobSpec) -> str:
    """What of the command decides how long a run takes; empty where nothing says so. Runs of one
    workload with different ones take different times.
    """
    command, arguments, variables = _sorted_by_use(*_parts(spec.worker_container()))
    return " ".join((*command.length, *arguments.length, *variables.length))


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


def _identity(spec: GPUJobSpec) -> dict[str, object]:
    if spec.workload is not None:
        return {"workload": spec.workload}
    worker = spec.worker_container()
    command, arguments, variables = _sorted_by_use(*_parts(worker))
    return {
        "image": _content(str(worker.get("image", ""))),
        "command": command.step,
        "args": arguments.step,
        "env": sorted(text.split("=", 1) for text in variables.step),
    }


def _content(image: str) -> str:
    """A digest says what is in an image, whatever its name and tag are."""
    return image.rpartition("@")[2]


class _ByUse(NamedTuple):
    """Parts of a command by what they decide."""

    step: tuple[str, ...]
    length: tuple[str, ...]


_Texts = tuple[str, ...]


# Each job is asked for its workload and for its length, and thousands have the same command.
@lru_cache(maxsize=1024)
def _sorted_by_use(
    command: _Texts, arguments: _Texts, variables: tuple[tuple[str, str], ...]
) -> tuple[_ByUse, _ByUse, _ByUse]:
    of_variables = [(variable_decides(name), f"{name}={value}") for name, value in variables]
    return _by_use(options(command)), _by_use(options(arguments)), _by_use(of_variables)


def _by_use(found: Iterable[tuple[Decides, str]]) -> _ByUse:
    parts = list(found)
    return _ByUse(
        tuple(text for decides, text in parts if decides is Decides.STEP),
        tuple(text for decides, text in parts if decides is Decides.LENGTH),
    )


def _parts(worker: Mapping[str, Any]) -> tuple[_Texts, _Texts, tuple[tuple[str, str], ...]]:
    return tuple(_texts(worker, "command")), tuple(_texts(worker, "args")), tuple(_plain(worker))


def _texts(worker: Mapping[str, Any], field: str) -> list[str]:
    return [str(word) for word in worker.get(field) or ()]


def _plain(worker: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Environment variables whose value stands in the template."""
    for entry in worker.get("env") or ():
        if "value" in entry:
            yield str(entry.get("name", "")), str(entry["value"])
