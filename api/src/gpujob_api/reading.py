"""The messages between an agent and the operator.

The agent opens a WebSocket at the operator's report port. The operator greets with a reply to
reading 0. Then the agent sends one reading at a time and waits for the reply. No reading has an
absolute time that the operator must trust. It has the seconds between the operator's last reply and
the reading instead.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

from gpujob_api.bounds import Count, Range
from gpujob_api.codec import decode, encode, parse_json
from gpujob_api.gpunode import GPUS_MAX
from gpujob_api.json_values import FieldError

READINGS_PATH = "/readings"
# 64 GPUs with 20 processes each take 250 KiB.
READING_BYTES_MAX = 512 * 1024
# A reading may precede the reply, and a node may have been suspended.
_SECONDS_MAX = 10_000_000


@dataclass(frozen=True, slots=True)
class ReadingHead:
    """The number of a reading on its connection, and its time. Negative means before the reply."""

    sequence: Count
    since_reply_seconds: Annotated[float, Range(-_SECONDS_MAX, _SECONDS_MAX)]


@dataclass(frozen=True, slots=True)
class ReadingReply:
    """The answer to the reading `sequence`.

    With `full`, the next reading must have every GPU, because nothing of the answered one was kept.
    """

    sequence: Count = 0
    full: bool = False

    def to_text(self) -> str:
        return json.dumps(encode(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> "ReadingReply":
        return decode(cls, parse_json(text, "reply"), "reply")


def reading_text(
    head: ReadingHead, status: Mapping[str, Any], unchanged: Sequence[str] = ()
) -> str:
    """Returns the message. `status` is an encoded `GPUNodeStatus` with the changed GPUs."""
    message = {**encode(head), "status": status, "unchanged": list(unchanged)}
    return json.dumps(message, separators=(",", ":"))


@dataclass(frozen=True, slots=True)
class ReadingMessage:
    """A message as it was received. Its `status` is not checked yet."""

    head: ReadingHead
    status: Mapping[str, Any]
    unchanged: tuple[str, ...]


def read_reading(text: str) -> ReadingMessage:
    """Reads a message. Raises `FieldError`."""
    message = parse_json(text, "reading")
    if not isinstance(message, dict):
        raise FieldError("reading", "must be an object")
    fields = cast("dict[str, Any]", message)
    known = {name: fields[name] for name in ("sequence", "sinceReplySeconds") if name in fields}
    status, unchanged = fields.get("status"), fields.get("unchanged", [])
    if not isinstance(status, dict):
        raise FieldError("reading.status", "must be an object")
    if not isinstance(unchanged, list) or len(cast("list[object]", unchanged)) > GPUS_MAX:
        raise FieldError("reading.unchanged", f"must be a list of at most {GPUS_MAX} UUIDs")
    uuids = cast("list[object]", unchanged)
    if not all(isinstance(uuid, str) for uuid in uuids):
        raise FieldError("reading.unchanged", "must be a list of texts")
    head = decode(ReadingHead, known, "reading")
    return ReadingMessage(head, cast("dict[str, Any]", status), tuple(map(str, uuids)))
