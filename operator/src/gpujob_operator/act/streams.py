"""JSON from the API server: any text is read or refused, and lines may have any length.

Python's own reader gives up where a text is legal and still too much for it: nesting beyond its
stack, numbers of thousands of digits. Both can stand in one object among ten thousand, and must not
cost the other ones: what is too much becomes NaN, which every reader of a field refuses by name.
"""

import json
import math
import re
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, cast

# etcd holds 1.5 MiB an object by default, and JSON writes a byte of it in up to six.
LINE_BYTES_MAX = 64 * 1024**2
# Of one answer. A page of a list that is larger is asked for again in smaller ones.
ANSWER_BYTES_MAX = 64 * 1024**2
DEPTH_MAX = 200
_DIGITS_MAX = 4000
# What the containers of a pod are started with.
_BULK = ("args", "command", "env", "envFrom", "lifecycle", "volumeMounts")
# A string, or what opens or closes a value.
_MARKS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


class TooLong(Exception):  # noqa: N818 - it is a finding, not a fault of the program
    """More bytes than are kept."""


def parsed(data: bytes) -> Any:
    """Raises `ValueError` for what is no JSON, and nothing else."""
    text = data.decode("utf-8", "replace")
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return json.loads(shallow(text), parse_int=_integer)


def shallow(text: str) -> str:
    """JSON with NaN in place of what is nested deeper than `DEPTH_MAX`."""
    kept: list[str] = []
    depth, since = 0, 0
    for mark in _MARKS.finditer(text):
        if mark[0] in "[{":
            depth += 1
            if depth == DEPTH_MAX + 1:
                kept.append(text[since : mark.start()])
        elif mark[0] in "]}":
            depth -= 1
            if depth == DEPTH_MAX:
                kept.append("NaN")
                since = mark.end()
    return "".join(kept) + text[since:] if kept else text


def _integer(digits: str) -> float:
    return int(digits) if len(digits) <= _DIGITS_MAX else math.nan


async def lines(chunks: AsyncIterable[bytes]) -> AsyncIterator[bytes]:
    """The lines in a stream, however it is cut. Raises `TooLong`."""
    rest: list[bytes] = []
    size = 0
    async for chunk in chunks:
        *ends, tail = chunk.split(b"\n")
        for end in ends:
            line = b"".join([*rest, end])
            rest, size = [], 0
            if line.strip():
                yield line
        rest.append(tail)
        size += len(tail)
        if size > LINE_BYTES_MAX:
            raise TooLong(f"a line of more than {LINE_BYTES_MAX} bytes")
    if line := b"".join(rest).strip():
        yield line


async def whole(chunks: AsyncIterable[bytes]) -> bytes:
    """All of an answer. Raises `TooLong`."""
    data = bytearray()
    async for chunk in chunks:
        data += chunk
        if len(data) > ANSWER_BYTES_MAX:
            raise TooLong(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
    return bytes(data)


def read_event(line: bytes) -> dict[str, Any]:
    """A line of a watch; one that is no event is of the type `UNREADABLE` with its `problem`."""
    try:
        event = parsed(line)
    except ValueError as error:
        return {"type": "UNREADABLE", "object": {}, "problem": str(error)}
    shape = cast("dict[str, Any]", event) if isinstance(event, dict) else {}
    if "object" not in shape or not isinstance(shape.get("type"), str):
        return {"type": "UNREADABLE", "object": {}, "problem": "is not a watch event"}
    return shape


def without_bulk(item: object) -> object:
    """An object without what makes large ones large and nobody here reads: who manages which field,
    and what containers are started with. A whole list of them is held at once."""
    if not isinstance(item, dict):
        return item
    fields = cast("dict[str, Any]", item)
    metadata, spec = fields.get("metadata"), fields.get("spec")
    if isinstance(metadata, dict):
        cast("dict[str, Any]", metadata).pop("managedFields", None)
    if isinstance(spec, dict):
        for place in ("containers", "initContainers"):
            entries = cast("dict[str, Any]", spec).get(place)
            for container in cast("list[object]", entries) if isinstance(entries, list) else ():
                if isinstance(container, dict):
                    for bulk in _BULK:
                        cast("dict[str, Any]", container).pop(bulk, None)
    return fields
