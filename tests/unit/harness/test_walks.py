"""The counts of `python -m tests.walks` are those of what really ran."""

from gpujob_operator.read.shapes import version_number
from tests.walks.__main__ import COLUMNS, event_to_pod, table
from tests.walks.tracer import Walk


def test_only_calls_into_our_packages_are_counted() -> None:
    walk = Walk()
    walk.start()
    version_number("7")
    sorted([2, 1])
    walk.stop()
    version_number("8")
    assert walk.counts() == {"files": 1, "functions": 1, "crossings": 0}


async def test_the_way_from_an_event_to_a_pod_crosses_files() -> None:
    counts = await event_to_pod()
    assert set(counts) == set(COLUMNS)
    assert 50 < counts["files"] < counts["functions"]
    assert counts["crossings"] > counts["files"]
    assert str(counts["functions"]) in table({"event to pod": counts})
