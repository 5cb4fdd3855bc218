"""What makes two jobs the same workload: one that takes the same GPU memory and time for a step.

Either the user names it (`spec.workload`), or it is the image, command and environment without what
differs between the runs of a sweep.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpujob_api.gpujob import GPUJobSpec
from gpujob_operator.decide.measurement.command_options import Decides, options, variable_decides


def fingerprint(spec: GPUJobSpec) -> str:
    """SHA-256 (16 hex digits) of what makes two runs the same workload."""
    identity: dict[str, object] = {
        "workers": spec.workers,
        "gpusPerWorker": spec.gpus_per_worker,
        "batchTotal": spec.optimize.batch_size.total,
        **_program(spec),
    }
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def run_length(spec: GPUJobSpec) -> str:
    """What of the command decides how long a run takes; empty where nothing says so. Runs of one
    workload with different ones take different times.
    """
    worker = spec.worker_container()
    found = [*options(_texts(worker, "command")), *options(_texts(worker, "args"))]
    found += [(variable_decides(name), f"{name}={value}") for name, value in _plain(worker)]
    return " ".join(text for decides, text in found if decides is Decides.LENGTH)


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


def _program(spec: GPUJobSpec) -> dict[str, object]:
    if spec.workload is not None:
        return {"workload": spec.workload}
    worker = spec.worker_container()
    return {
        "image": _content(str(worker.get("image", ""))),
        "command": _of_step(_texts(worker, "command")),
        "args": _of_step(_texts(worker, "args")),
        "env": sorted(
            (name, value)
            for name, value in _plain(worker)
            if variable_decides(name) is Decides.STEP
        ),
    }


def _content(image: str) -> str:
    """A digest says what is in an image, whatever its name and tag are."""
    return image.rpartition("@")[2]


def _of_step(arguments: Iterable[str]) -> list[str]:
    return [text for decides, text in options(arguments) if decides is Decides.STEP]


def _texts(worker: Mapping[str, Any], field: str) -> list[str]:
    return [str(word) for word in worker.get(field) or ()]


def _plain(worker: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Environment variables whose value stands in the template."""
    for entry in worker.get("env") or ():
        if "value" in entry:
            yield str(entry.get("name", "")), str(entry["value"])
