"""What the last layer's type does to what is learned: three ways of the same training, by start."""

import json
from typing import Any

import pytest
import torch

from bench import last_layer
from bench.last_layer import BFLOAT16, FLOAT32, OURS, WAYS, losses, plan_of
from bench.workloads import gpt2
from gpujob_worker.inject.wrapped_module import Root

TINY = dict(layers=1, heads=2, width=16, context=16, words=64, samples=32, batch=8)


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(last_layer, "CONFIG", TINY)
    args = gpt2.get_arguments(["--size", "small"])
    args.config = TINY
    return gpt2.get_model(args)


def test_the_ways_differ_in_the_type_of_the_last_layer(tiny: Any) -> None:
    found: dict[str, torch.Tensor] = {}
    for way in WAYS:
        root = Root(tiny, lambda _: None)
        root.install()
        root.plan = plan_of(tiny, way)
        found[way] = tiny(torch.arange(16).view(2, 8)).detach()
        root.remove()
    rounded = {way: torch.equal(out, out.bfloat16().float()) for way, out in found.items()}
    assert rounded == {FLOAT32: False, BFLOAT16: True, OURS: False}
    assert {out.dtype for out in found.values()} == {torch.float32}
    assert not torch.equal(found[OURS], found[FLOAT32]), "the layers before it are in bfloat16"


def test_starts_differ_and_ways_begin_alike(tiny: Any) -> None:
    del tiny
    first, other = list(losses(FLOAT32, 0, 3)), list(losses(FLOAT32, 1, 3))
    assert first != other
    assert first == pytest.approx(other, rel=1e-3)
    assert list(losses(FLOAT32, 0, 3)) == first
    for way in (BFLOAT16, OURS):
        found = list(losses(way, 0, 3))
        assert found != first
        assert found == pytest.approx(first, rel=1e-2)


def test_the_table_and_its_object(tiny: Any, capsys: pytest.CaptureFixture[str]) -> None:
    del tiny
    assert last_layer.main(["--steps", "12", "--starts", "2"]) == 0
    printed = capsys.readouterr()
    rows = json.loads(printed.out.splitlines()[-1])["results"]
    assert [row["way"] for row in rows] == list(WAYS)
    for row in rows:
        assert row["starts"] == 2
        assert row["lowest"] <= row["loss"] <= row["highest"]
    assert "float32, start 1: " in printed.err
