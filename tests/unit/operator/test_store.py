"""The newest version of each object wins, whatever order the news comes in."""

import itertools
from collections.abc import Mapping
from typing import Any

import pytest

from gpujob_api.codec import FieldError
from gpujob_operator.observe.store import REMEMBERED_MAX, REMEMBERED_SECONDS, Store, Tombstones
from gpujob_operator.read.shapes import version_number
from tests.harness.clocks import FakeClock


def _parse(manifest: Mapping[str, Any]) -> str:
    if manifest.get("text") == "bad":
        raise FieldError("text", "is bad")
    return str(manifest.get("text"))


def _object(uid: str, version: int, text: str = "", name: str = "") -> dict[str, Any]:
    metadata = {"uid": uid, "name": name or uid, "resourceVersion": str(version)}
    return {"metadata": metadata, "text": text or f"{uid}@{version}"}


def _store(clock: FakeClock | None = None) -> Store[str]:
    return Store((clock or FakeClock()).now, _parse)


def test_an_older_event_does_not_undo_a_write() -> None:
    store = _store()
    assert store.upsert(_object("a", 5))
    assert not store.upsert(_object("a", 4))
    assert not store.upsert(_object("a", 5))
    assert store.views == ("a@5",)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_any_order_of_events_ends_the_same(order: tuple[int, ...]) -> None:
    store = _store()
    events: list[Any] = [
        lambda: store.upsert(_object("a", 1)),
        lambda: store.upsert(_object("a", 2)),
        lambda: store.remove("a", 3),
        lambda: store.upsert(_object("b", 4, name="a")),
    ]
    for number in order:
        events[number]()
    assert store.views == ("b@4",)
    assert store.by_name("a") == "b@4"


def test_what_leaves_a_selector_may_come_back() -> None:
    store = _store()
    store.upsert(_object("a", 1))
    assert store.remove("a", 2)
    assert store.upsert(_object("a", 3))


def test_what_is_gone_for_good_does_not_come_back() -> None:
    store = _store()
    store.upsert(_object("a", 1))
    store.remove("a")
    assert not store.upsert(_object("a", 99))


def test_a_deletion_from_before_the_newest_state_removes_nothing() -> None:
    """A watch that selects by label tells of an object that has come back since."""
    store = _store()
    store.upsert(_object("a", 5))
    assert not store.remove("a", 4)
    assert store.views == ("a@5",)
    assert store.by_name("a") == "a@5"
    assert store.upsert(_object("a", 6)), "nothing is buried either"


def test_same_view_is_no_news() -> None:
    store = _store()
    store.upsert(_object("a", 1, "same"))
    assert not store.upsert(_object("a", 2, "same"))
    assert store.version("a") == 2


def test_a_bad_edit_leaves_the_last_good_state() -> None:
    store = _store()
    store.upsert(_object("a", 1))
    assert not store.upsert(_object("a", 2, "bad"))
    assert store.views == ("a@1",)
    assert not store.resync([_object("a", 2, "bad")], "3")
    assert store.views == ("a@1",)


def test_a_list_removes_what_it_lacks_but_not_what_is_newer() -> None:
    store = _store()
    store.upsert(_object("old", 3))
    store.upsert(_object("written since", 12))
    assert store.resync([_object("listed", 8)], "10")
    assert set(store.views) == {"listed@8", "written since@12"}


def test_an_older_list_brings_nothing_back() -> None:
    store = _store()
    store.upsert(_object("a", 3))
    store.remove("a", 5)
    assert not store.resync([_object("a", 3)], "4")
    assert store.views == ()


@pytest.mark.promise("I9")
def test_a_list_from_before_everything_that_was_seen_replaces_it() -> None:
    """The API server's data was restored from a backup: versions go back."""
    store = _store()
    for manifest in (_object("a", 90), _object("gone", 95), _object("dead", 91)):
        store.upsert(manifest)
    store.remove("dead", 99)
    restored, mark = [_object("a", 50), _object("dead", 40)], store.mark
    assert store.lacks(restored, "60", mark)
    assert store.resync(restored, "60", mark)
    assert sorted(store.views) == ["a@50", "dead@40"]
    assert not store.lacks(restored, "60", mark)
    assert store.upsert(_object("a", 61)), "events go on from there"
    assert not store.resync(restored, "60", mark), "told once already"
    assert "a@61" in store.views


def test_a_list_with_an_older_state_of_an_object_replaces_everything() -> None:
    """The versions of the restored data have grown beyond those before meanwhile."""
    store = _store()
    for manifest in (_object("a", 90), _object("same", 40), _object("dead", 80)):
        store.upsert(manifest)
    store.remove("dead", 99)
    restored, mark = [_object("a", 50), _object("same", 40), _object("dead", 30)], store.mark
    assert not store.lacks([_object("a", 90), _object("same", 40)], "200", mark)
    assert store.lacks(restored, "200", mark)
    assert store.resync(restored, "200", mark)
    assert sorted(store.views) == ["a@50", "dead@30", "same@40"]


def test_a_write_that_overtook_a_list_is_no_other_past() -> None:
    store = _store()
    store.upsert(_object("a", 5))
    mark = store.mark
    store.upsert(_object("a", 9))
    assert not store.lacks([_object("a", 5)], "7", mark)
    assert not store.resync([_object("a", 5)], "7", mark)
    assert store.views == ("a@9",)


def test_lacks_tells_what_no_event_told() -> None:
    store = _store()
    store.upsert(_object("a", 3))
    assert not store.lacks([_object("a", 3)], "9")
    assert store.lacks([_object("a", 4)], "9")
    assert store.lacks([_object("a", 3), _object("b", 1)], "9")
    assert store.lacks([], "9")
    store.remove("a", 5)
    assert not store.lacks([], "9")
    assert not store.lacks([_object("a", 3)], "4"), "the list is older than the end we know of"


def test_views_are_one_tuple_until_something_changes() -> None:
    store = _store()
    store.upsert(_object("a", 1))
    first = store.views
    store.upsert(_object("a", 1))
    assert store.views is first
    store.upsert(_object("b", 2))
    assert store.views is not first


def test_a_limited_number_of_objects_that_are_gone_is_remembered() -> None:
    store = _store()
    for number in range(REMEMBERED_MAX + 10):
        store.remove(str(number), 1)
    assert store.upsert(_object("0", 1)), "the oldest was forgotten"
    assert not store.upsert(_object(str(REMEMBERED_MAX), 1))


def test_an_object_that_is_gone_is_remembered_for_a_limited_time() -> None:
    clock = FakeClock()
    store = _store(clock)
    store.remove("a", 5)
    clock.advance(REMEMBERED_SECONDS - 1)
    assert not store.upsert(_object("a", 5))
    assert store.lacks([_object("a", 6)], "9")
    clock.advance(1)
    assert store.upsert(_object("a", 5))


def test_what_is_remembered_of_objects_that_come_and_go_does_not_grow() -> None:
    clock = FakeClock()
    tombstones, sizes = Tombstones(clock.now), list[int]()
    for second in range(3 * int(REMEMBERED_SECONDS)):
        tombstones.bury(str(second), second)
        clock.advance(1)
        sizes.append(len(tombstones))
    assert set(sizes[int(REMEMBERED_SECONDS) :]) <= {REMEMBERED_SECONDS - 1, REMEMBERED_SECONDS}


def test_an_older_deletion_does_not_let_an_older_state_back() -> None:
    tombstones = Tombstones(FakeClock().now)
    tombstones.bury("a", 7)
    tombstones.bury("a", 3)
    assert (tombstones.version("a"), tombstones.version("b")) == (7, 0)


def test_a_state_that_cannot_be_read_is_no_change_however_long_ago_it_was_seen() -> None:
    clock = FakeClock()
    store = _store(clock)
    assert not store.upsert(_object("a", 5, "bad"))
    clock.advance(2 * REMEMBERED_SECONDS)
    assert not store.lacks([_object("a", 5, "bad")], "9"), "its watch works"
    assert store.lacks([_object("a", 6, "bad")], "9")
    assert store.upsert(_object("a", 6, "good"))


def test_an_older_deletion_does_not_make_a_state_new_that_could_not_be_read() -> None:
    store = _store()
    store.upsert(_object("a", 5, "bad"))
    store.remove("a", 3)
    assert not store.lacks([_object("a", 5, "bad")], "9")


@pytest.mark.parametrize(("text", "number"), [("12", 12), ("", 0), (None, 0), ("abc", 0)])
def test_version_number(text: str | None, number: int) -> None:
    assert version_number(text) == number
