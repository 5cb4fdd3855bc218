"""The recorder says what it missed: a list has the newest state of each object only."""

from typing import Any, cast

from gpujob_local.control_plane.control_plane import ControlPlane
from tests.harness.recorder import _Stream

Json = dict[str, Any]


class _Plane:
    """The API server as far as a list is concerned."""

    def __init__(self) -> None:
        self.items: list[Json] = []
        self.version = 1

    def put(self, name: str) -> None:
        self.version += 1
        metadata = {"name": name, "uid": f"uid-{name}", "resourceVersion": str(self.version)}
        self.items = [one for one in self.items if one["metadata"]["name"] != name]
        self.items.append({"metadata": metadata})

    def client(self) -> "_Plane":
        return self

    def identity(self, _: str) -> None:
        return None

    def get(self, _: str) -> Json:
        metadata = {"resourceVersion": str(self.version)}
        return {"metadata": metadata, "items": list(self.items)}


def _stream(plane: _Plane) -> _Stream:
    return _Stream(cast("ControlPlane", plane), "Pod")


def test_what_was_there_before_was_not_missed() -> None:
    plane = _Plane()
    plane.put("a")
    stream = _stream(plane)
    stream.relist()
    assert stream.missed == []


def test_what_changed_between_two_lists_was_missed() -> None:
    plane = _Plane()
    plane.put("a")
    plane.put("gone")
    stream = _stream(plane)
    plane.put("a")
    plane.put("new")
    plane.items = [one for one in plane.items if one["metadata"]["name"] != "gone"]
    stream.relist()
    assert sorted(stream.missed) == ["Pod a", "Pod gone", "Pod new"]


def test_an_outage_that_was_expected_excuses_one_list() -> None:
    plane = _Plane()
    stream = _stream(plane)
    stream.may_miss = True
    plane.put("a")
    stream.relist()
    assert stream.missed == []
    plane.put("a")
    stream.relist()
    assert stream.missed == ["Pod a"]
