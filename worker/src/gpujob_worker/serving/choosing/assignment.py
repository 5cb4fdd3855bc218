"""What a candidate process is asked to do, and the file with its result.

The assignment is the JSON in GPUJOB_SERVING_CANDIDATE. A process with it measures one plan and
ends.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from gpujob_api.bounds import Items, Message, Range, Text
from gpujob_api.codec import FieldError, check, decode, encode, parse_json
from gpujob_api.serving import BackendName, Quantization, ServingSettings
from gpujob_api.settings import Precision
from gpujob_worker.serving.choosing.requests import Load, Seen
from gpujob_worker.serving.choosing.timing import SIZES_MAX, Timing
from gpujob_worker.serving.plan import Plan

ENV_CANDIDATE = "GPUJOB_SERVING_CANDIDATE"
RESULT, REFERENCE_FILE = "result.json", "reference.safetensors"
Sha256 = Annotated[str, Text(64)]


@dataclass(frozen=True, slots=True)
class Work:
    """How long one process measures."""

    warm_ups: Annotated[int, Range(0, 1000)] = 10
    batches_max: Annotated[int, Range(1, 10**6)] = 200
    size_seconds: Annotated[float, Range(0, 600)] = 2.0
    clock_seconds: Annotated[float, Range(0, 600)] = 20.0

    def __post_init__(self) -> None:
        check(self)


@dataclass(frozen=True, slots=True)
class Assignment:
    """`reference` is the folder of the reference, which is `folder` itself in its own process.

    With `load`, the plan was measured before, and answers requests instead.
    """

    folder: Annotated[str, Text(4096)]
    reference: Annotated[str, Text(4096)]
    backend: BackendName
    precision: Precision
    quantization: Quantization
    sizes: Annotated[tuple[int, ...], Items(SIZES_MAX)]
    work: Work = field(default_factory=Work)
    settings: ServingSettings = field(default_factory=ServingSettings)
    load: Load | None = None

    @property
    def plan(self) -> Plan:
        return Plan(self.backend, self.precision, self.quantization)

    @property
    def is_reference(self) -> bool:
        return self.folder == self.reference

    def to_text(self) -> str:
        return json.dumps(encode(self), sort_keys=True)

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> "Assignment | None":
        """Returns None in a process that is no candidate."""
        text = environment.get(ENV_CANDIDATE, "")
        if not text:
            return None
        return decode(cls, parse_json(text, ENV_CANDIDATE), ENV_CANDIDATE)


@dataclass(frozen=True, slots=True)
class NoiseFigures:
    output: Annotated[str, Text(256)]
    relative_percent: float
    row_percent: float
    largest_percent: float
    absolute: float


@dataclass(frozen=True, slots=True)
class Result:
    """`problem` is None if the answers were accepted. `fatal` ends the whole measurement."""

    model: Sha256 = ""
    examples: Sha256 = ""
    problem: Message | None = None
    fatal: bool = False
    relative_error_percent: float | None = None
    agreement_percent: float | None = None
    timing: Timing = field(default_factory=Timing)
    # The file in the folder from which the backend can be loaded.
    artifact: Annotated[str, Text(255)] | None = None
    # Of the reference only.
    answers: Sha256 = ""
    noise: Annotated[tuple[NoiseFigures, ...], Items(256)] = ()
    metric: float | None = None
    # Of a process that answered requests, only this and `problem` are set.
    seen: Seen | None = None

    def write(self, folder: Path) -> None:
        """Writes the file at once, so that a reader finds all of it or nothing."""
        fresh = folder / f".{RESULT}"
        fresh.write_text(json.dumps(encode(self)))
        os.replace(fresh, folder / RESULT)

    @classmethod
    def read(cls, folder: Path) -> "Result | None":
        """Returns None without a file, or if it is not a result."""
        try:
            text = (folder / RESULT).read_text()
        except (OSError, UnicodeDecodeError):
            return None
        try:
            return decode(cls, parse_json(text, RESULT), RESULT)
        except FieldError:
            return None
