"""Lines of any length, cut anywhere, with anything in them; one odd object costs no other one."""

import asyncio
import json
import math
from collections.abc import AsyncGenerator, AsyncIterator, Generator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_operator.client import streams
from gpujob_operator.client.connection import load_configuration
from gpujob_operator.client.kube import PODS, Kube
from gpujob_operator.client.streams import DEPTH_MAX, TooLong, lines, parsed, read_event
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.observe.cache import Cache
from gpujob_operator.observe.dirty import Dirty
from gpujob_operator.observe.watch.watches import PODS_WATCHED, Watch
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import make_job, placed
from tests.harness.http_api import HttpApi
from tests.harness.manifests import pod_manifest
from tests.harness.odd_json import ODD_SCALARS, odd_objects, odd_values, to_json
from tests.harness.waiting import eventually

JOB = placed(make_job())


async def _chunks(data: bytes, size: int) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


@given(parts=st.lists(st.binary(max_size=9)), size=st.integers(1, 7))
async def test_lines_do_not_depend_on_how_the_stream_is_cut(parts: list[bytes], size: int) -> None:
    data = b"\n".join(parts)
    found = [line async for line in lines(_chunks(data, size))]
    assert [one.strip() for one in found] == [
        one.strip() for one in data.split(b"\n") if one.strip()
    ]


async def test_a_line_without_end_is_not_kept_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "LINE_BYTES_MAX", 100)
    assert [line async for line in lines(_chunks(b"x" * 100, 10))] == [b"x" * 100]
    with pytest.raises(TooLong):
        _ = [line async for line in lines(_chunks(b"x" * 101, 10))]


@given(value=odd_values())
def test_any_json_is_read(value: object) -> None:
    parsed(to_json({"a": value}))


@given(value=odd_values())
def test_it_is_what_pythons_own_reader_reads(value: object) -> None:
    data = to_json({"a": value})
    expected = _parsed_by_python(data)
    if expected is not None:
        assert _same(parsed(data), expected)


def _parsed_by_python(data: bytes) -> object:
    """None where it is too much for Python's own reader."""
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None


def _same(one: object, other: object) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(_same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    if isinstance(one, float) and isinstance(other, int):
        return abs(other) >= 2**63 and one == float(other)
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    return type(one) is type(other) and one == other


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b'"\\ud800"', "\ud800"),
        (b'"\xff"', "\ufffd"),
        (b"Infinity", math.inf),
        (b"1e400", math.inf),
        (b"18446744073709551615", 2**64 - 1),
        (b"18446744073709551616", float(2**64)),
    ],
)
def test_what_only_one_reader_takes_is_read(text: bytes, expected: object) -> None:
    found = parsed(text)
    assert (type(found), found) == (type(expected), expected)


@pytest.mark.parametrize("text", [b"", b"{", b"[1]x", b'{"a":1,}', b"\xff", b"nan"])
def test_what_is_no_json_is_said_not_to_be(text: bytes) -> None:
    with pytest.raises(ValueError, match="line 1 column"):
        parsed(text)


@given(data=st.binary(max_size=30))
def test_any_bytes_are_an_event_or_said_not_to_be_one(data: bytes) -> None:
    assert "object" in read_event(data)


def test_what_is_too_much_is_no_number_and_the_rest_stays() -> None:
    deep = '{"a":' * 100_000 + '"]}"' + "}" * 100_000
    found = parsed(f'{{"deep":{deep},"n":{"9" * 5000},"list":[1,[2]],"s":"[[{{"}}'.encode())
    assert math.isnan(found["n"])
    assert (found["list"], found["s"]) == ([1, [2]], "[[{")
    inner, depth = found["deep"], 1
    while isinstance(inner, dict):
        inner, depth = inner["a"], depth + 1
    assert math.isnan(inner)
    assert depth == DEPTH_MAX


class _Watching:
    def __init__(self, api: HttpApi, kube: Kube) -> None:
        self.api = api
        self.kube = kube
        self.metrics = Metrics()
        self.cache = Cache(Dirty(), self.metrics, lambda: datetime.now(UTC))
        self.watch = Watch(kube, self.cache, self.metrics, PODS_WATCHED, sleep=self._pause)
        self.lives = 0

    async def _pause(self, seconds: float) -> None:
        self.lives += 1
        await asyncio.sleep(0.001)

    def unreadable(self, reason: str) -> float:
        labels = {"kind": "Pod", "reason": reason}
        found = self.metrics.registry.get_sample_value("gpujob_unreadable_objects_total", labels)
        return found or 0.0

    def put(self, name: str, size: int = 0) -> None:
        pod = pod_manifest(JOB)
        pod["metadata"] |= {"name": name, "uid": f"uid-{name}"}
        pod["spec"]["containers"] = [{"name": "c", "env": [{"name": "A", "value": "x" * size}]}]
        self.api.put(PODS, pod)

    async def pods(self, count: int) -> None:
        await eventually(lambda: len(self.cache.pods) == count, 10)


@pytest.fixture
def api() -> Generator[HttpApi]:
    with HttpApi().running() as running:
        yield running


@pytest.fixture
async def watching(api: HttpApi, tmp_path: Path) -> AsyncGenerator[_Watching]:
    kube = Kube(await load_configuration(str(api.write_kubeconfig(tmp_path / "kubeconfig"))))
    watching = _Watching(api, kube)
    task = asyncio.create_task(watching.watch.run())
    await eventually(lambda: api.watches(PODS) == 1, 10)
    yield watching
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await kube.close()


async def test_a_pod_of_ten_megabytes_is_a_pod(watching: _Watching) -> None:
    watching.put("fat", 10 * 1024**2)
    watching.put("lean")
    await watching.pods(2)
    assert watching.lives == 0


async def test_large_pods_are_listed_in_smaller_pages(
    watching: _Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "ANSWER_BYTES_MAX", 300_000)
    for number in range(10):
        watching.put(f"p{number}", 100_000)
    listing = await watching.kube.list(PODS)
    assert len(listing.items) == 10
    assert len(json.dumps(listing.items)) < 100_000, "what nobody reads is not kept"


async def test_a_line_that_is_too_long_lists_again(
    watching: _Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "LINE_BYTES_MAX", 500_000)
    watching.put("fat", 1_000_000)
    await watching.pods(1)
    assert watching.lives == 1
    watching.put("lean")
    await watching.pods(2)


async def test_text_that_is_no_event_is_counted_and_passed_over(watching: _Watching) -> None:
    for line in (b"no json\n", b"[]\n", b"\xff\xfe\n", b'{"type":"NEW","object":{}}\n'):
        watching.api.say(PODS, line)
    watching.api.say(PODS, b'{"type":["ADDED"],"object":null}\n')
    watching.put("lean")
    await watching.pods(1)
    assert watching.unreadable("line") == 5
    assert watching.lives == 0


async def test_an_object_without_a_name_is_counted_and_passed_over(watching: _Watching) -> None:
    for metadata in (b"{}", b"3", b'{"uid":"a"}', b'{"uid":7,"name":"a"}'):
        watching.api.say(PODS, b'{"type":"ADDED","object":{"metadata":%s}}\n' % metadata)
    watching.put("lean")
    await watching.pods(1)
    assert watching.unreadable("metadata") == 4


@pytest.mark.promise("I10")
@settings(max_examples=25)
@given(odd=odd_objects({**pod_manifest(JOB), "metadata": {"name": "odd", "uid": "uid-odd"}}))
async def test_any_object_in_a_stream_costs_no_other_one(watching: _Watching, odd: object) -> None:
    watching.api.say(PODS, b'{"type":"MODIFIED","object":%s}\n' % to_json(odd))
    watching.put("lean")
    version = int(watching.api.stored(PODS, "lean", "team")["metadata"]["resourceVersion"])
    await eventually(lambda: watching.cache.pods.version("uid-lean") >= version, 10)
    watching.cache.snapshot((), Configuration())


async def test_odd_objects_in_a_list_cost_no_other_one(watching: _Watching) -> None:
    for value in ODD_SCALARS:
        watching.api.put_raw(PODS, to_json(value))
        pod = pod_manifest(JOB)
        pod["status"] = value
        pod["metadata"] |= {"name": "odd", "uid": "uid-odd"}
        watching.api.put_raw(PODS, to_json(pod))
    watching.put("lean")
    watching.api.end_watches(PODS, compact=True)
    await watching.pods(2)
    await eventually(lambda: watching.lives >= 1, 10)
    listing = await watching.kube.list(PODS)
    assert len(listing.items) == 2 * len(ODD_SCALARS) + 1
