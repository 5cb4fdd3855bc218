"""Fields of a status that this version does not know: a newer version wrote them.

A status is replaced as a whole, and these fields go along. There are none as a rule, so that
nothing is kept of nearly all objects.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from gpujob_api.unknown_fields import unknown_fields
from gpujob_operator.decide.model.snapshot import InvalidJob
from gpujob_operator.read.shapes import identity, mapping

ViewT = TypeVar("ViewT")


class UnknownFields:
    """Of the objects of one kind, whose status is a noun of the type `status`. Of a job that cannot
    be read, nothing is known.
    """

    def __init__(self, status: type) -> None:
        self._status = status
        # By UID; bounded by the objects that there are.
        self._found: dict[str, dict[str, Any]] = {}

    def of(self, uid: str) -> dict[str, Any]:
        return self._found.get(uid, {})

    def noting(
        self, parse: Callable[[Mapping[str, Any]], ViewT]
    ) -> Callable[[Mapping[str, Any]], ViewT]:
        """The parser, which also notes the unknown fields of what it reads."""

        def read(manifest: Mapping[str, Any]) -> ViewT:
            view = parse(manifest)
            uid = identity(manifest).uid
            status = mapping(manifest.get("status"))
            is_unread = isinstance(view, InvalidJob)
            found = dict(status) if is_unread else unknown_fields(self._status, status)
            if found:
                self._found[uid] = found
            else:
                self._found.pop(uid, None)
            return view

        return read

    def forget(self, uid: str) -> None:
        self._found.pop(uid, None)
