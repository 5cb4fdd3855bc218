"""The alerts and boards in promtool's eyes: they parse, and each alert rings when it should."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpujob_local.control_plane.tools import find_tools
from tests.harness.chart import CHART, named, render
from tests.harness.repository import ROOT

pytestmark = pytest.mark.cluster
CASES = ROOT / "tests" / "chart" / "alerts.yaml"
BOARDS = sorted((CHART / "files" / "dashboards").glob("*.json"))
ON = {"metrics": {"prometheusRule": {"enabled": True}}}
# What Grafana puts in the place of its variables.
VARIABLES = {"$node": "node-1"}


def promtool(*arguments: str, folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [str(find_tools("promtool")["promtool"]), *arguments]
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False
    )


def rendered_groups() -> list[dict[str, Any]]:
    return named(render(ON), "PrometheusRule", "operator")["spec"]["groups"]


def write_rules(folder: Path, groups: list[dict[str, Any]]) -> None:
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": groups}), encoding="utf-8")


def play(folder: Path, groups: list[dict[str, Any]]) -> "subprocess.CompletedProcess[str]":
    write_rules(folder, groups)
    (folder / "alerts.yaml").write_text(CASES.read_text(encoding="utf-8"), encoding="utf-8")
    return promtool("test", "rules", "alerts.yaml", folder=folder)


def test_every_alert_rings_when_it_should_and_no_sooner(tmp_path: Path) -> None:
    done = play(tmp_path, rendered_groups())
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_case_in_which_it_rings_and_one_in_which_it_does_not() -> None:
    rings: set[str] = set()
    silent: set[str] = set()
    for case in yaml.safe_load(CASES.read_text(encoding="utf-8"))["tests"]:
        for moment in case["alert_rule_test"]:
            (rings if moment.get("exp_alerts") else silent).add(moment["alertname"])
    alerts = {rule["alert"] for group in rendered_groups() for rule in group["rules"]}
    assert rings == silent == alerts


def test_an_alert_that_never_rings_is_noticed(tmp_path: Path) -> None:
    """promtool itself: without the part for series that are new, a first count is not seen."""
    groups = rendered_groups()
    (broken,) = (one for one in groups[0]["rules"] if one["alert"] == "GPUJobObjectsUnreadable")
    broken["expr"] = "increase(gpujob_unreadable_objects_total[30m]) > 0"
    done = play(tmp_path, groups)
    assert done.returncode != 0
    assert "GPUJobObjectsUnreadable" in done.stdout + done.stderr


def test_the_rules_have_nothing_that_promtool_warns_of(tmp_path: Path) -> None:
    write_rules(tmp_path, rendered_groups())
    done = promtool("check", "rules", "--lint=all", "--lint-fatal", "rules.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("path", BOARDS, ids=lambda path: path.stem)
def test_every_expression_of_a_board_can_be_asked(path: Path, tmp_path: Path) -> None:
    """As recording rules, which promtool parses all at once."""
    board = json.loads(path.read_text(encoding="utf-8"))
    rules = [
        {"record": f"board:panel_{panel['id']}_{number}", "expr": with_values(target["expr"])}
        for panel in board["panels"]
        for number, target in enumerate(panel["targets"])
    ]
    assert rules
    write_rules(tmp_path, [{"name": path.stem, "rules": rules}])
    done = promtool("check", "rules", "rules.yaml", folder=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def with_values(expression: str) -> str:
    for variable, value in VARIABLES.items():
        expression = expression.replace(variable, value)
    return expression
