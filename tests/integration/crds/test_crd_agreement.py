"""The real API server and the Python nouns agree on what an object may be.

What Python can build, the API server takes; what the API server takes, Python reads; and what the
API server refuses, Python refuses too, so that an older CRD lets nothing in that hurts.
"""

import copy
import json
from collections.abc import Callable, Generator
from http.client import HTTPSConnection
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob
from gpujob_api.gpunode import GPUNode
from gpujob_api.gpuprofile import GPUProfile
from gpujob_api.gpuqueue import GPUQueue
from gpujob_api.gpuservice import GPUService
from gpujob_api.manifest import RESOURCES, from_manifest, to_manifest
from gpujob_api.short_form import SHORT_FIELDS
from gpujob_local.control_plane.api_client import headers, ssl_context
from tests.harness.cluster import RunningControlPlane
from tests.harness.crds import KINDS, schema_of
from tests.harness.nouns import nouns
from tests.harness.schema_values import filled, mutable_paths, put, sweep_for, values_for

pytestmark = pytest.mark.cluster

Json = dict[str, Any]
TEMPLATE = {"spec": {"containers": [{"name": "worker", "image": "trainer"}]}}
LEAST: dict[type[Any], Json] = {
    GPUJob: {"template": TEMPLATE},
    GPUNode: {},
    GPUQueue: {},
    GPUProfile: {"fingerprint": "f", "image": "trainer"},
    GPUService: {"template": TEMPLATE},
}


class Server:
    """One stored object, and dry runs beside it: nothing is written, everything is validated."""

    def __init__(self, running: RunningControlPlane, kind: type[Any], namespace: str) -> None:
        resource = RESOURCES[kind]
        folder = f"/namespaces/{namespace}" if resource.namespaced else ""
        identity = running.control_plane.identity("admin")
        host = identity.server.removeprefix("https://")
        # One connection for all: most of a short request's time is the handshake.
        self._connection = HTTPSConnection(host, timeout=60, context=ssl_context(identity))
        self._headers = headers(identity)
        self._collection = f"/apis/gpujob.dev/v1alpha1{folder}/{resource.plural}"
        self._path = f"{self._collection}/base-{namespace}"
        head = {"apiVersion": "gpujob.dev/v1alpha1", "kind": resource.kind}
        base = head | {"metadata": {"name": f"base-{namespace}"}, "spec": LEAST[kind]}
        stored = self._ask("POST", self._collection, base)
        assert isinstance(stored, dict), stored
        self.base = base | {"metadata": stored["metadata"]}

    def close(self) -> None:
        self._ask("DELETE", self._path, {})
        self._connection.close()

    def create(self, manifest: Json) -> Json | str:
        """What the server would store without `status`, or what it says against it."""
        named = {"metadata": {"name": "another"}}
        body = {key: value for key, value in manifest.items() if key != "status"}
        return self._ask("POST", f"{self._collection}?dryRun=All", body | named)

    def put_status(self, manifest: Json) -> Json | str:
        body = self.base | {"status": manifest["status"]}
        return self._ask("PUT", f"{self._path}/status?dryRun=All", body)

    def _ask(self, method: str, path: str, body: Json) -> Json | str:
        self._connection.request(method, path, json.dumps(body), self._headers)
        response = self._connection.getresponse()
        answer = json.loads(response.read())
        assert response.status in (200, 201, 400, 422), answer
        return answer if response.status < 300 else str(answer["message"])


@pytest.fixture(params=KINDS, ids=lambda kind: RESOURCES[kind].kind)
def kind(request: pytest.FixtureRequest) -> type[Any]:
    return request.param


@pytest.fixture
def server(
    control_plane: RunningControlPlane, namespace: str, kind: type[Any]
) -> Generator[Server]:
    running = Server(control_plane, kind, namespace)
    yield running
    running.close()


def test_what_python_builds_is_taken(server: Server, kind: type[Any]) -> None:
    @settings(max_examples=12)
    @given(nouns(kind))
    def taken(noun: Any) -> None:
        manifest = to_manifest(noun)
        stored = server.create(manifest)
        assert isinstance(stored, dict), stored
        assert from_manifest(kind, stored).spec == noun.spec
        written = server.put_status(manifest)
        assert isinstance(written, dict), written
        assert from_manifest(kind, written).status == noun.status

    taken()


@pytest.mark.parametrize("part", ["spec", "status"])
def test_a_damaged_object_is_refused_by_both_or_by_none(
    server: Server, kind: type[Any], part: str
) -> None:
    places = mutable_paths(schema_of(kind)["properties"][part])
    send = server.create if part == "spec" else server.put_status

    @settings(max_examples=25)
    @given(nouns(kind), st.data())
    def agree(noun: Any, data: st.DataObject) -> None:
        body = copy.deepcopy(to_manifest(noun)[part])
        for _ in range(data.draw(st.integers(1, 2))):
            path, schema = data.draw(st.sampled_from(places))
            put(body, path, data.draw(values_for(schema)))
        _compare(kind, server.base | {part: body}, send)

    agree()


@pytest.mark.parametrize("part", ["spec", "status"])
def test_every_field_is_refused_by_both_or_by_none(
    server: Server, kind: type[Any], part: str
) -> None:
    """Every field in turn with a value of every JSON type and those around its bounds."""
    schema = schema_of(kind)["properties"][part]
    send = server.create if part == "spec" else server.put_status
    for full in _fullest(schema):
        assert isinstance(send(server.base | {part: full}), dict)
        for path, place in mutable_paths(schema):
            if path[0] not in full:
                continue
            for value in sweep_for(place):
                body = copy.deepcopy(full)
                assert put(body, path, copy.deepcopy(value))
                _compare(kind, server.base | {part: body}, send)


def _fullest(schema: Json) -> list[Json]:
    """An object with every field; of a job's spec in the long form and in the short one."""
    full = filled(schema)
    if "template" not in schema["properties"]:
        return [full]
    long = {name: value for name, value in full.items() if name not in SHORT_FIELDS}
    if not full.keys() >= SHORT_FIELDS:
        return [long | {"template": TEMPLATE}]
    short = {name: full[name] for name in SHORT_FIELDS}
    return [long | {"template": TEMPLATE}, short]


def _compare(kind: type[Any], manifest: Json, send: Callable[[Json], Json | str]) -> None:
    answer = send(manifest)
    if isinstance(answer, dict):
        from_manifest(kind, answer)
        return
    read = _read(kind, manifest)
    if read is not None:
        # Python may only have made it fit: what it would write is taken.
        repaired = send(to_manifest(read))
        assert isinstance(repaired, dict), f"Python reads what is refused: {answer}"


def _read(kind: type[Any], manifest: Json) -> Any:
    try:
        return from_manifest(kind, manifest)
    except FieldError:
        return None
