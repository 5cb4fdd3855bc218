"""What makes two jobs the same workload: image, command and arguments, without arguments that
differ between runs.
"""

import hashlib
import json
import re
from collections.abc import Iterable

from gpujob_api.gpujob import GPUJobSpec

# Arguments that differ between runs of a workload and do not affect its resource use.
_VOLATILE_FLAG = re.compile(
    r"^--?(?:seed|result|output|output[-_]dir|out[-_]dir|log[-_]dir|logging[-_]dir|run[-_]name"
    r"|name|resume|resume[-_]from[-_]checkpoint|tag)(=.*)?$"
)


def without_volatile(arguments: Iterable[str]) -> list[str]:
    """Drops flags such as --seed 1 or --output-dir=x together with their value."""
    kept: list[str] = []
    skip_value = False
    for argument in arguments:
        if skip_value:
            skip_value = False
            if not argument.startswith("-"):
                continue
        match = _VOLATILE_FLAG.match(argument)
        if match is None:
            kept.append(argument)
        else:
            skip_value = match[1] is None
    return kept


def fingerprint(spec: GPUJobSpec) -> str:
    """SHA-256 (16 hex digits) of what makes two runs the same workload."""
    worker = spec.worker_container()
    batch = spec.optimize.batch_size
    plain_environment = sorted(
        (entry.get("name", ""), entry["value"])
        for entry in worker.get("env") or ()
        if "value" in entry
    )
    identity = {
        "image": worker.get("image", ""),
        "command": without_volatile(worker.get("command") or ()),
        "args": without_volatile(worker.get("args") or ()),
        "env": plain_environment,
        "workers": spec.workers,
        "gpusPerWorker": spec.gpus_per_worker,
        "batchTotal": batch.total,
    }
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def program_of(spec: GPUJobSpec) -> tuple[str, ...]:
    """What runs of one program have in common, whatever its options: the image, and the words of
    the command before the first option."""
    worker = spec.worker_container()
    words = [str(worker.get("image", ""))]
    for given in (*(worker.get("command") or ()), *(worker.get("args") or ())):
        word = str(given)
        if word.startswith("-"):
            break
        words.append(word)
    return tuple(words)
