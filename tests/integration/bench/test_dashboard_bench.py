"""bench.dashboard: a small cluster gives every figure."""

import json

import pytest

from bench.dashboard import pages, streams
from bench.dashboard.__main__ import code_size, main
from bench.dashboard.cluster import Size


def test_a_small_cluster_gives_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ("--gpus", "9", "--jobs", "40", "--viewers", "3", "--seconds", "3", "--rounds", "2")
    assert main(sizes) == 0
    result = json.loads(capsys.readouterr().out.splitlines()[-1])
    measured = [(row["page"], row["gpus"]) for row in result["results"]]
    expected = [
        (one.path, size.gpus) for size in (Size(0, 0), Size(9, 40)) for one in pages.pages(size)
    ]
    assert measured == expected
    for row in result["results"]:
        assert row["bytes"] > row["gzipped_bytes"] > 100
        assert row["cold_max_ms"] >= row["cold_p50_ms"] > 0
    [viewed] = result["streams"]
    assert set(streams.COLUMNS) == set(viewed)
    assert viewed["viewers"] == 3
    assert 0 < viewed["p50_s"] <= viewed["p99_s"] <= 30
    assert result["machine"]["cores"]


def test_the_package_stays_small() -> None:
    size = code_size()
    assert size["lines"] <= 3300
    assert size["script_gzipped_bytes"] <= 60_000
