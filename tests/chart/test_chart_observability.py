"""Alerts and boards: series exist, every alert has its runbook, and Grafana finds the boards."""

import json
import re
from typing import Any

import pytest
import yaml

from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.chart import CHART, named, render
from tests.harness.repository import ROOT
from tests.harness.series import families, labels_of_gauges

pytestmark = pytest.mark.cluster
SERIES = re.compile(r"\bgpujob_[a-z_]+\b")
SUFFIXES = ("", "_total", "_bucket", "_sum", "_count")
ON = {"metrics": {"prometheusRule": {"enabled": True}, "dashboards": {"enabled": True}}}
ALERTS: list[dict[str, Any]] = yaml.safe_load((CHART / "files" / "alerts.yaml").read_text())
BOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))


def exported() -> set[str]:
    ours = [one.name for one in families() if one.name.startswith("gpujob_")]
    return {name + suffix for name in ours for suffix in SUFFIXES}


def labels_of() -> dict[str, set[str]]:
    """The labels of each series, as the operator declares them."""
    found = labels_of_gauges()
    for one in vars(Metrics()).values():
        names = getattr(one, "_labelnames", None)
        if names is not None:
            for suffix in SUFFIXES:
                found[one._name + suffix] = set(names)
    return found


def expressions(board: dict[str, Any]) -> list[str]:
    return [target["expr"] for panel in board["panels"] for target in panel["targets"]]


def test_every_series_of_an_alert_is_exported() -> None:
    for alert in ALERTS:
        used = set(SERIES.findall(alert["expr"]))
        assert used, alert["alert"]
        assert used <= exported(), alert["alert"]


def test_an_alert_tells_of_labels_that_its_series_have() -> None:
    for alert in ALERTS:
        told = set(re.findall(r"\$labels\.([a-z_]+)", str(alert["annotations"])))
        for series in SERIES.findall(alert["expr"]):
            assert told <= labels_of()[series], alert["alert"]


def test_every_alert_waits_has_a_severity_and_a_section_of_its_own() -> None:
    text = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
    sections = re.findall(r"^## (\S+)$", text, re.MULTILINE)
    assert sections == [alert["alert"] for alert in ALERTS]
    for alert in ALERTS:
        assert alert["labels"]["severity"] in ("critical", "warning", "info")
        assert re.fullmatch(r"[0-9]+[mh]", alert["for"])
        assert set(alert["annotations"]) == {"summary", "description"}


@pytest.mark.parametrize(
    ("address", "annotation", "where"),
    [
        ("https://example.org/runbooks", "runbook_url", "https://example.org/runbooks"),
        ("", "runbook", "docs/runbooks.md"),
    ],
)
def test_the_rule_has_all_alerts_with_the_place_of_their_runbooks(
    address: str, annotation: str, where: str
) -> None:
    """Without an address of the installation's own, the file in the repository."""
    assert (ROOT / "docs" / "runbooks.md").is_file()
    values = {"metrics": {"prometheusRule": {"enabled": True, "runbookUrl": address}}}
    (group,) = named(render(values), "PrometheusRule", "operator")["spec"]["groups"]
    for rule, alert in zip(group["rules"], ALERTS, strict=True):
        assert {name: rule[name] for name in ("alert", "expr", "for")} == {
            name: alert[name] for name in ("alert", "expr", "for")
        }
        assert rule["annotations"].pop(annotation) == f"{where}#{alert['alert'].lower()}"
        assert rule["annotations"] == alert["annotations"]


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_every_series_of_a_board_is_exported(path: Any) -> None:
    board = json.loads(path.read_text(encoding="utf-8"))
    assert expressions(board)
    for expression in expressions(board):
        assert set(SERIES.findall(expression)) <= exported(), expression
        assert expression.count("(") == expression.count(")"), expression


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_panels_have_a_number_and_a_place_of_their_own(path: Any) -> None:
    panels = json.loads(path.read_text(encoding="utf-8"))["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_boards_arrive_as_they_are_where_grafana_looks() -> None:
    found = named(render(ON), "ConfigMap", "dashboards")
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"
    assert {name: json.loads(text) for name, text in found["data"].items()} == {
        path.name: json.loads(path.read_text(encoding="utf-8")) for path in BOARDS
    }
