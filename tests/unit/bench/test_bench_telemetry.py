"""The benchmark of readings counts each node once, and every write that the API server counted."""

import asyncio
from contextlib import suppress

import pytest

from bench import telemetry
from bench.played_agents import Witness
from bench.throughput.figures import difference, read_series
from gpujob_api.reading import ReadingReply
from gpujob_operator.agent.direct import Connection, ConnectionLost

TOTAL = "apiserver_request_total"
USED = {"kube-apiserver": 2.0, "etcd": 0.5, "operator": 0.25}


def counted(tokens: int, leases: int, statuses: int, reads: int = 0) -> str:
    counts = {
        ("tokenreviews", "", "POST"): tokens,
        ("leases", "", "PUT"): leases,
        ("gpunodes", "status", "PATCH"): statuses,
        ("gpunodes", "", "WATCH"): reads,
    }
    return "\n".join(
        f'{TOTAL}{{code="200",resource="{kind}",subresource="{part}",verb="{verb}"}} {count}'
        for (kind, part, verb), count in counts.items()
    )


def row(way: str, seconds: float, before: str, after: str) -> dict[str, object]:
    requests = difference(read_series(after, [TOTAL]), read_series(before, [TOTAL]))
    return telemetry.cost_row(way, seconds, USED, requests)


def test_the_operators_token_reviews_and_leases_are_writes() -> None:
    found = row("direct", 10.0, counted(5, 100, 7), counted(25, 110, 12, reads=99))
    assert found["writes_per_second"] == pytest.approx(3.5)
    assert found["writes_by_kind"] == {"gpunodes/status": 0.5, "leases": 1.0, "tokenreviews": 2.0}
    percents = [found[f"{part}_percent"] for part in ("api_server", "etcd", "operator")]
    assert percents == [20.0, 5.0, 2.5]


def test_ways_stand_side_by_side_by_kind() -> None:
    rows = [
        row("none", 10.0, counted(0, 0, 0), counted(0, 10, 0)),
        row("direct", 10.0, counted(0, 10, 0), counted(30, 20, 0)),
    ]
    assert telemetry.kind_rows(rows) == [
        {"writes": "tokenreviews", "none": 0.0, "direct": 3.0},
        {"writes": "leases", "none": 1.0, "direct": 1.0},
    ]


def test_a_way_may_be_left_out() -> None:
    assert telemetry.parse([]).ways == ["none", "status", "direct", "lease"]
    assert telemetry.parse(["--ways", "direct,none"]).ways == ["none", "direct"]


def test_an_unknown_way_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        telemetry.parse(["--ways", "direct,pigeon"])
    assert "unknown: pigeon; of none, status, direct, lease" in capsys.readouterr().err


class FakeConnection:
    def __init__(self, replies: list[str]) -> None:
        self.replies = replies
        self.sent: list[str] = []
        self.closed = False

    async def send(self, text: str) -> None:
        self.sent.append(text)

    async def receive(self) -> str:
        if not self.replies:
            raise ConnectionLost("closed")
        return self.replies.pop(0)

    async def close(self) -> None:
        self.closed = True


async def replied(witness: Witness, node: str, *replies: str, url: str = "leader") -> Connection:
    inner = FakeConnection(list(replies))

    async def connect(_url: str, _wait_seconds: float) -> Connection:
        return inner

    connection = await witness.watching(node, connect)(url, 0.0)
    await connection.send("reading")
    with suppress(ConnectionLost):
        while True:
            await connection.receive()
    await connection.close()
    assert inner.sent == ["reading"]
    assert inner.closed
    return connection


HELLO = ReadingReply().to_text()


def taken(sequence: int, *, full: bool = False) -> str:
    return ReadingReply(sequence, full).to_text()


async def test_a_node_counts_once_however_often_it_is_read() -> None:
    witness = Witness()
    await replied(witness, "a", HELLO, taken(1), taken(2), taken(3))
    await replied(witness, "a", HELLO, taken(1))
    assert witness.nodes == {"leader": {"a"}}
    await replied(witness, "b", HELLO, taken(1))
    assert witness.nodes == {"leader": {"a", "b"}}


@pytest.mark.parametrize("replies", [(HELLO,), (HELLO, taken(1, full=True)), (HELLO, "not JSON")])
async def test_no_reading_was_taken(replies: tuple[str, ...]) -> None:
    """A greeting, a reading that has to come again in full, and a reply that nobody can read."""
    witness = Witness()
    await replied(witness, "a", *replies)
    assert witness.nodes == {}


async def test_each_operator_has_readings_of_its_own() -> None:
    witness = Witness()
    await replied(witness, "a", HELLO, taken(1), url="first")
    await replied(witness, "b", HELLO, taken(1), url="second")
    assert witness.nodes == {"first": {"a"}, "second": {"b"}}


async def test_all_nodes_are_awaited_not_as_many_readings() -> None:
    witness = Witness()
    await replied(witness, "a", HELLO, taken(1), taken(2), taken(3))
    await replied(witness, "b", HELLO, taken(1), url="another")
    waiting = asyncio.create_task(
        telemetry.until_taken(witness, "leader", 2, poll_seconds=0.0, limit_seconds=60.0)
    )
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    await replied(witness, "b", HELLO, taken(1))
    async with asyncio.timeout(10):
        await waiting


async def test_it_says_how_many_nodes_are_missing(capsys: pytest.CaptureFixture[str]) -> None:
    witness = Witness()
    await replied(witness, "a", HELLO, taken(1))
    clock = iter(range(0, 1000, 25)).__next__
    with pytest.raises(TimeoutError, match=r"readings of 1 of 2 nodes after 90 s"):
        await telemetry.until_taken(
            witness, "leader", 2, clock=clock, poll_seconds=0.0, limit_seconds=90.0
        )
    assert capsys.readouterr().err.count("readings of 1 of 2 nodes") == 1


def test_nodes_are_ready_so_that_nobody_writes_that_they_are_not() -> None:
    node = telemetry.node_manifest("node-7")
    (ready,) = node["status"]["conditions"]
    assert (ready["type"], ready["status"]) == ("Ready", "True")
    assert ready["lastHeartbeatTime"].endswith("Z")
    assert node["metadata"]["labels"] == {"gpujob.dev/managed": "true"}
