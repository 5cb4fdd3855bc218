"""Wrong values are refused at install, with the value named (promise I10 for the chart)."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from tests.harness.chart import CHART, template

pytestmark = pytest.mark.cluster


def leaves(values: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every value that is not a map of further values."""
    for name, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, (*path, name))
        else:
            yield (*path, name)


DEFAULTS: Mapping[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
LEAVES = list(leaves(DEFAULTS))


def nested(path: tuple[str, ...], value: Any) -> dict[str, Any]:
    for name in reversed(path):
        value = {name: value}
    return value


def wrong_for(path: tuple[str, ...]) -> Any:
    """A value of another type than the default's."""
    value: Any = DEFAULTS
    for name in path:
        value = value[name]
    return [["wrong"]] if isinstance(value, list | str) else "wrong!"


@pytest.mark.promise("I10")
@pytest.mark.parametrize("path", LEAVES, ids=".".join)
def test_a_value_of_the_wrong_type_is_refused(path: tuple[str, ...]) -> None:
    done = template(nested(path, wrong_for(path)))
    assert done.returncode != 0
    assert path[-1] in done.stderr


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"oprator": {}}, "oprator"),
        ({"operator": {"replica": 2}}, "replica"),
        ({"operator": {"replicas": 0.5}}, "replicas"),
        ({"operator": {"replicas": 100}}, "replicas"),
        ({"image": {"tag": "latest"}}, "tag"),
        ({"image": {"digest": "sha256:short"}}, "digest"),
        ({"image": {"pullPolicy": "Sometimes"}}, "pullPolicy"),
        ({"reports": {"port": 80}}, "port"),
        ({"reports": {"port": 70000}}, "port"),
        ({"reports": {"url": "ftp://here"}}, "url"),
        ({"agent": {"intervalSeconds": 0}}, "intervalSeconds"),
        ({"configuration": {"waitingStretchMax": -1}}, "waitingStretchMax"),
        ({"configuration": {"deviceAccess": "Magic"}}, "deviceAccess"),
        ({"configuration": {"telemetryStaleSeconds": -1}}, "telemetryStaleSeconds"),
        ({"configuration": {"memoryMargin": 1}}, "memoryMargin"),
        ({"configuration": {"pricePerGpuHour": {"H100": "cheap"}}}, "pricePerGpuHour"),
        ({"operator": {"resources": {"limits": {"memory": "1 GB"}}}}, "memory"),
    ],
    ids=lambda value: str(value)[:60],
)
def test_nonsense_is_refused_by_name(values: Mapping[str, Any], named: str) -> None:
    done = template(values)
    assert done.returncode != 0
    assert named in done.stderr


def test_every_value_is_explained() -> None:
    """A comment stands above or in the group of every top-level value."""
    lines = (CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    groups = "\n".join(lines).split("\n\n")
    assert [group for group in groups if "#" not in group and ":" in group] == []
