"""Reads JSON of any content and lines of any length from the API server, within limits.

Readers fail on legal texts that exceed their limits, such as very deep nesting or numbers with
thousands of digits. One such object in a list of ten thousand must not affect the other ones. The
part that exceeds a limit becomes NaN, which every reader of a field rejects by the field's name.
orjson is the faster reader. Python's own reader reads what orjson refuses.
"""

import json
import math
import re
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any, cast

import orjson

# etcd stores 1.5 MiB per object by default, and JSON may write one byte as six.
LINE_BYTES_MAX = 64 * 1024**2
# Limit of one answer. A page of a list that exceeds it is requested again in smaller pages.
ANSWER_BYTES_MAX = 64 * 1024**2
DEPTH_MAX = 200
_DIGITS_MAX = 4000
# Large fields of containers that the operator does not read.
_BULK = ("args", "command", "env", "envFrom", "lifecycle", "volumeMounts")
# A string, or a bracket.
_MARKS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{}]', re.DOTALL)


class TooLong(Exception):  # noqa: N818 - it is a finding, not a fault of the program
    """The input exceeds a limit in bytes."""


def parsed(data: bytes) -> Any:
    """Returns the parsed JSON. Raises `ValueError` if the text is not JSON, and no other error.

    An integer of more than 64 bits may become a float, as in the API server.
    """
    try:
        return orjson.loads(data)
    except ValueError:
        return _parsed_slowly(data.decode("utf-8", "replace"))


def _parsed_slowly(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return json.loads(shallow(text), parse_int=_integer)


def shallow(text: str) -> str:
    """Returns the JSON text with NaN in place of values nested deeper than `DEPTH_MAX`."""
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
    """Yields the lines of a stream, however its chunks are split. Raises `TooLong`."""
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
    """Returns the whole answer. Raises `TooLong`."""
    data = bytearray()
    async for chunk in chunks:
        data += chunk
        if len(data) > ANSWER_BYTES_MAX:
            raise TooLong(f"an answer of more than {ANSWER_BYTES_MAX} bytes")
    return bytes(data)


def read_event(line: bytes) -> dict[str, Any]:
    """Returns the event in one line of a watch.

    A line that is not an event gets the type `UNREADABLE` and its `problem`.
    """
    try:
        event = parsed(line)
    except ValueError as error:
        return {"type": "UNREADABLE", "object": {}, "problem": str(error)}
    shape = cast("dict[str, Any]", event) if isinstance(event, dict) else {}
    if "object" not in shape or not isinstance(shape.get("type"), str):
        return {"type": "UNREADABLE", "object": {}, "problem": "is not a watch event"}
    return shape


def without_bulk(item: object) -> object:
    """Returns the object without large parts that the operator does not read.

    They are the contents of managed fields, and the commands and environments of containers. Whole
    lists are held in memory at once.
    """
    if not isinstance(item, dict):
        return item
    fields = cast("dict[str, Any]", item)
    metadata, spec = fields.get("metadata"), fields.get("spec")
    if isinstance(metadata, dict):
        _without_fields(cast("dict[str, Any]", metadata).get("managedFields"))
    if isinstance(spec, dict):
        for place in ("containers", "initContainers"):
            entries = cast("dict[str, Any]", spec).get(place)
            for container in cast("list[object]", entries) if isinstance(entries, list) else ():
                if isinstance(container, dict):
                    for bulk in _BULK:
                        cast("dict[str, Any]", container).pop(bulk, None)
    return fields


def _without_fields(managed: object) -> None:
    """Removes the large part, which is the field names. Writers and times are kept."""
    for entry in cast("list[object]", managed) if isinstance(managed, list) else ():
        if isinstance(entry, dict):
            cast("dict[str, Any]", entry).pop("fieldsV1", None)
