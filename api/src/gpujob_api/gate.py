"""What a GPUService's gate reports to the operator, and the operator's replies.

A gate is a process in front of the replicas of one service. It holds requests while no replica is
ready, and forwards the others. It has no rights at the API server: its reports are its only
connection to the operator.
"""

import json
from dataclasses import dataclass
from typing import Annotated

from gpujob_api.bounds import Count, Items, Range, Text
from gpujob_api.codec import decode, encode, parse_json
from gpujob_api.gpuservice import COLD_START_SECONDS_MAX, REPLICAS_MAX

# Beside the path of the workers' reports.
GATE_PATH = "gate"
# Variables of the gate's container.
ENV_GATE_URL = "GPUJOB_GATE_URL"
ENV_GATE_TOKEN_FILE = "GPUJOB_GATE_TOKEN_FILE"  # noqa: S105 - the path of a file
ENV_GATE_HOST = "GPUJOB_GATE_HOST"
ENV_GATE_PORT = "GPUJOB_GATE_PORT"
# The gate's own path at the service's port. It is answered by the gate and never forwarded.
GATE_READY_PATH = "/gpujob/gate/ready"
# From SIGTERM to SIGKILL.
GATE_GRACE_SECONDS = 60
GATE_MESSAGE_BYTES_MAX = 16 * 1024

_Seconds = Annotated[float, Range(0, 10_000_000, clamp=True)]
_Address = Annotated[str, Text(64)]


@dataclass(frozen=True, slots=True)
class GateReport:
    """The requests of one gate. `sequence` only grows, also when the process starts again."""

    sequence: Count
    # Requests that wait for a replica.
    held: Count = 0
    # Requests that a replica answers.
    forwarded: Count = 0
    # Since the last request ended, or since the process started. 0 while there is a request.
    idle_seconds: _Seconds = 0.0
    # Replicas that it sends requests to. None: an older gate does not report it.
    replicas: Count | None = None

    def to_text(self) -> str:
        return json.dumps(encode(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "GateReport":
        return decode(cls, parse_json(text, "report"), "report")


@dataclass(frozen=True, slots=True)
class GateReply:
    """The operator's answer to a report."""

    # HOST:PORT of the replicas that are ready.
    replicas: Annotated[tuple[_Address, ...], Items(2 * REPLICAS_MAX)] = ()
    # How long a request may wait for a replica. 0: none is to be expected.
    cold_start_seconds: Annotated[float, Range(0, COLD_START_SECONDS_MAX)] = 0.0

    def to_text(self) -> str:
        return json.dumps(encode(self), separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "GateReply":
        return decode(cls, parse_json(text, "reply"), "reply")
