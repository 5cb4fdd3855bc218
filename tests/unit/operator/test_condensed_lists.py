"""What is held of a list until it is whole says as much as the list."""

from collections.abc import Mapping
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpujob_operator.client.kube import JOBS, NODES, PODS
from gpujob_operator.observe.cache import Cache, Kind
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.observe.scope import EVERYWHERE, Scope
from gpujob_operator.observe.store import Store
from gpujob_operator.observe.watch.relist import Relist
from gpujob_operator.read.shapes import Identity
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_job, placed
from tests.harness.clocks import FakeClock
from tests.harness.fake_kube import FakeKube
from tests.harness.manifests import job_manifest, node_manifest, pod_manifest

NAMES = ("a", "b", "c")


def _object(uid: str, version: int) -> dict[str, Any]:
    metadata = {"uid": uid, "name": uid, "resourceVersion": str(version)}
    return {"metadata": metadata, "text": f"{uid}@{version}"}


def _store() -> Store[str]:
    return Store(FakeClock().now, lambda manifest: str(manifest["text"]))


def test_of_a_first_list_nothing_is_held_but_who_is_in_it() -> None:
    store = _store()
    held, changed = store.condense(_object("a", 5), store.mark)
    assert (held, changed) == (Identity("a", "a", "", 5), True)
    assert store.views == ("a@5",)
    store.resync([held], "7")
    assert store.views == ("a@5",)


def test_of_a_first_list_that_was_cut_and_begins_again_nothing_is_held_either() -> None:
    store = _store()
    store.condense(_object("a", 5), store.mark)
    mark = store.mark
    held = [store.condense(one, mark)[0] for one in (_object("a", 5), _object("b", 6))]
    assert held == [Identity("a", "a", "", 5), Identity("b", "b", "", 6)]
    store.resync(held, "7", mark)
    assert store.views == ("a@5", "b@6")


def test_later_only_what_is_not_stored_is_held_whole() -> None:
    store = _store()
    store.resync([_object("a", 5), _object("b", 6)], "6")
    store.remove("b", 8)
    mark = store.mark
    objects = [_object("a", 5), _object("a", 9), _object("b", 7), _object("c", 9)]
    held = [store.condense(one, mark)[0] for one in objects]
    identities = [Identity("a", "a", "", 5), Identity("b", "b", "", 7)]
    assert held == [identities[0], objects[1], identities[1], objects[3]]
    assert store.views == ("a@5",), "the list is not whole yet"


def test_an_unreadable_object_is_held_as_it_is() -> None:
    """So that it is noted, once the list is whole."""
    ignored: list[str] = []
    store = Store(FakeClock().now, str, ignored=lambda name, error: ignored.append(str(error)))
    held, changed = store.condense({"metadata": {}}, store.mark)
    assert (held, changed) == ({"metadata": {}}, False)
    store.resync([held], "3")
    assert len(ignored) == 1


def test_what_was_known_and_is_not_any_more_is_not_stored() -> None:
    """Data were restored while the list came, which will be listed again."""
    store = _store()
    store.resync([_object("a", 5)], "5")
    mark = store.mark
    held = [store.condense(one, mark)[0] for one in (_object("a", 5), _object("b", 3))]
    store.begin_another_history()
    store.resync(held, "5", mark)
    assert sorted(store.views) == ["a@5", "b@3"]
    store.resync([_object("a", 4)], "4", store.mark)
    assert store.views == ("a@4",)


def test_an_older_state_in_a_list_shows_another_history_all_the_same() -> None:
    store = _store()
    store.resync([_object("a", 5), _object("b", 9)], "9")
    mark = store.mark
    held = [store.condense(one, mark)[0] for one in (_object("a", 4), _object("b", 12))]
    assert store.lacks(held, "12", mark)
    store.resync(held, "12", mark)
    assert store.mark.history == mark.history + 1


class _Server:
    """One history of a few objects. What happened is delivered later, or never."""

    def __init__(self) -> None:
        self.version = 0
        self.objects: dict[str, dict[str, Any]] = {}
        self.events: list[tuple[str, dict[str, Any]]] = []

    def write(self, name: str, deletes: bool) -> None:
        self.version += 1
        new = _object(name, self.version)
        if not deletes:
            self.objects[name] = new
        elif self.objects.pop(name, None) is None:
            return
        self.events.append(("DELETED" if deletes else "MODIFIED", new))


def _deliver(event: tuple[str, Mapping[str, Any]], *stores: Store[str]) -> None:
    kind, manifest = event
    for store in stores:
        if kind == "DELETED":
            store.remove(manifest["metadata"]["uid"], int(manifest["metadata"]["resourceVersion"]))
        else:
            store.upsert(manifest)


WRITES = st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), max_size=8)


@given(WRITES, WRITES, st.integers(0, 8), st.lists(st.integers(0, 3), min_size=3, max_size=3))
def test_a_condensed_list_ends_as_the_whole_one(
    before: list[tuple[str, bool]], during: list[tuple[str, bool]], seen: int, arrive: list[int]
) -> None:
    server, whole, condensed = _Server(), _store(), _store()
    for name, deletes in before:
        server.write(name, deletes)
    for event in server.events[:seen]:
        _deliver(event, whole, condensed)
    later = server.events[seen:]
    listed, version = list(server.objects.values()), str(server.version)
    for name, deletes in during:
        server.write(name, deletes)
    later += server.events[len(server.events) - len(during) :]
    marks, held = (whole.mark, condensed.mark), list[object]()
    for manifest, count in zip(listed, arrive, strict=False):
        held.append(condensed.condense(manifest, marks[1])[0])
        for event in later[:count]:
            _deliver(event, whole, condensed)
        del later[:count]
    assert condensed.lacks(held, version, marks[1]) <= whole.lacks(listed, version, marks[0])
    whole.resync(listed, version, marks[0])
    condensed.resync(held, version, marks[1])
    assert sorted(condensed.views) == sorted(whole.views)
    assert condensed.mark == whole.mark
    for event in later:
        _deliver(event, whole, condensed)
    assert sorted(condensed.views) == sorted(whole.views)


OURS, THEIRS = "team", "another-team"


def _job(namespace: str) -> dict[str, Any]:
    job = job_manifest(placed(make_job(uid=f"job-{namespace}")))
    job["metadata"]["namespace"] = namespace
    return job


def _relist(scope: Scope) -> tuple[Relist, Cache, FakeKube, list[Kind]]:
    kube, silences = FakeKube(), list[Kind]()
    cache = Cache(Dirty(), Metrics(), FakeClock().now, scope)
    return Relist(kube, cache, silent=silences.append, period_seconds=0.0), cache, kube, silences


async def test_what_is_listed_first_is_all_in_the_cache() -> None:
    relist, cache, kube, _ = _relist(EVERYWHERE)
    for namespace in (OURS, THEIRS):
        kube.put(JOBS, _job(namespace))
    kube.put(NODES, node_manifest("n0"))
    kube.put(PODS, pod_manifest(placed(make_job(uid="job-team"))))
    await relist.refresh()
    assert {job.metadata.uid for job in cache.jobs.views} == {"job-team", "job-another-team"}
    assert (len(cache.pods), len(cache.nodes)) == (1, 1)
    assert cache.ready


async def test_jobs_of_other_namespaces_are_in_no_condensed_list() -> None:
    relist, cache, kube, silences = _relist(Scope(frozenset({OURS})))
    for namespace in (OURS, THEIRS):
        kube.put(JOBS, _job(namespace))
    await relist.refresh()
    assert [job.metadata.namespace for job in cache.jobs.views] == [OURS]
    mark = cache.mark(Kind.JOB)
    held = [cache.condense(Kind.JOB, mark, _job(one)) for one in (OURS, THEIRS)]
    assert not cache.lacks(Kind.JOB, held, str(kube.version), mark)
    assert silences == []
