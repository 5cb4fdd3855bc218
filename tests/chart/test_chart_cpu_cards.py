"""The chart with CPU cards: what a newcomer without a GPU installs."""

from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from tests.harness.chart import (
    CHART,
    Manifest,
    named,
    of_kind,
    pod_spec,
    render,
    restricted_findings,
    template,
)
from tests.harness.repository import ROOT

pytestmark = pytest.mark.cluster
CPU: Mapping[str, Any] = {"agent": {"devices": "cpu"}}
KIND: Mapping[str, Any] = yaml.safe_load((ROOT / "examples/kind/values.yaml").read_text())


def agent(values: Mapping[str, Any]) -> Manifest:
    (found,) = of_kind(render(values), "DaemonSet")
    return pod_spec(found)


def arguments(values: Mapping[str, Any]) -> list[str]:
    return agent(values)["containers"][0]["args"]


def agent_rules(values: Mapping[str, Any]) -> list[Manifest]:
    (role,) = [
        found
        for found in of_kind(render(values), "ClusterRole")
        if found["metadata"]["name"] == "gpujob-agent"
    ]
    return role["rules"]


def test_the_agent_is_told_of_its_cpu_cards() -> None:
    values = {"agent": {"devices": "cpu", "cpu": {"count": 3, "memory": "512Mi"}}}
    assert {"--devices=cpu", "--cpu-count=3", "--cpu-memory=512Mi"} <= set(arguments(values))
    assert "--cpu-beside-gpus" not in arguments(values)
    assert "--process-owner=cgroup" in arguments(values)


def test_nodes_with_gpus_need_nothing_of_it() -> None:
    assert "--devices=nvml" in arguments({})
    assert not [text for text in arguments({}) if "cpu" in text]


def test_no_runtime_class_is_asked_for() -> None:
    for values in (CPU, {"agent": {"devices": "cpu", "runtimeClassName": "nvidia"}}):
        assert "runtimeClassName" not in agent(values)
        configuration = named(render(values), "ConfigMap", "configuration")
        assert "runtimeClassName" not in configuration["data"]["configuration.yaml"]


def test_the_agent_asks_for_no_gpu() -> None:
    names = {entry["name"] for entry in agent(CPU)["containers"][0]["env"]}
    assert names == {"NODE_NAME"}


def test_it_needs_no_more_of_the_node_than_with_gpus() -> None:
    assert restricted_findings(agent(CPU)) == ["spec.hostPID"]


def test_only_with_cpu_cards_an_agent_lists_pods() -> None:
    more = yaml.safe_load((CHART / "files" / "agent-cpu-rules.yaml").read_text())
    assert [rule for rule in agent_rules(CPU) if rule not in agent_rules({})] == more
    assert [(rule["resources"], rule["verbs"]) for rule in more] == [(["pods"], ["list"])]


def test_a_device_plugin_has_no_cpu_cards_to_hand_out() -> None:
    done = template({**CPU, "configuration": {"deviceAccess": "DevicePlugin"}})
    assert done.returncode != 0
    assert "configuration.deviceAccess" in done.stderr


@pytest.mark.parametrize(
    ("cpu", "named"),
    [
        ({"count": 0}, "count"),
        ({"count": 65}, "count"),
        ({"memory": "2GB"}, "memory"),
        ({"memory": 2}, "memory"),
        ({"cards": 1}, "cards"),
    ],
    ids=str,
)
def test_nonsense_is_refused(cpu: Mapping[str, Any], named: str) -> None:
    done = template({"agent": {"devices": "cpu", "cpu": cpu}})
    assert done.returncode != 0
    assert named in done.stderr


def test_the_values_for_kind_render() -> None:
    """On a laptop whose GPU pods cannot use, too."""
    assert {"--devices=cpu", "--cpu-beside-gpus"} <= set(arguments(KIND))
