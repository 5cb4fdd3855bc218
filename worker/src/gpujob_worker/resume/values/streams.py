"""Open and closed streams: buffers in memory, and files that are read or written."""

import io
from typing import Any

from gpujob_worker.checkpoint.errors import MismatchError, UnsavableError
from gpujob_worker.resume.values.family import KIND, Family, Node
from gpujob_worker.resume.values.kinds import name_of
from gpujob_worker.resume.values.objects import read_same
from gpujob_worker.resume.values.reader import Reader
from gpujob_worker.resume.values.restorer import Restorer


def read_stream(reader: Reader, value: Any, path: str) -> Node:
    """Returns a stream. A written one is handled by its file, and a read one continues at its
    position.
    """
    if isinstance(value, (io.StringIO, io.BytesIO)) and not value.closed:
        return {KIND: "buffer", "content": value.getvalue(), "at": value.tell()}
    if value.closed:
        return {KIND: "closed stream", "type": name_of(type(value))}
    if not value.readable():
        return read_same(reader, value, path)
    try:
        return {KIND: "stream", "type": name_of(type(value)), "at": value.tell()}
    except (OSError, ValueError) as error:
        raise UnsavableError(f"{path} is read from a place that is not known: {error}") from None


def restore_buffer(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    del path
    kind = io.StringIO if isinstance(node["content"], str) else io.BytesIO
    found: Any = existing if restorer.fits(existing, kind) else kind()
    found.seek(0)
    found.truncate()
    found.write(node["content"])
    found.seek(node["at"])
    restorer.bind(index, found)


def restore_closed_stream(
    restorer: Restorer, index: int, node: Node, existing: Any, path: str
) -> None:
    """A closed stream is of no more use, whichever file it was."""
    del path
    if name_of(type(existing)) != node["type"] or not existing.closed:
        existing = io.StringIO()
        existing.close()
    restorer.bind(index, existing)


def restore_stream(restorer: Restorer, index: int, node: Node, existing: Any, path: str) -> None:
    if name_of(type(existing)) != node["type"] or existing.closed:
        raise MismatchError(f"{path} was open for reading and is not")
    existing.seek(node["at"])
    restorer.bind(index, existing)


FAMILY = Family(
    restores={
        "buffer": restore_buffer,
        "closed stream": restore_closed_stream,
        "stream": restore_stream,
    },
    reads_of_bases=((io.IOBase, read_stream),),
)
