"""Claims for jobs that name no place for checkpoints: the chart's value and the right it gives."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpujob_operator.decide.model.checkpoint_claim import AccessMode, ClaimSize, ClaimTemplate
from gpujob_operator.options import load_configuration_file
from tests.harness.chart import CHART, Manifest, named, of_kind, render, template

pytestmark = pytest.mark.cluster

CLAIMS = "persistentvolumeclaims"
WATCHED = {"operator": {"watchNamespaces": ["team-a", "team-b"]}}


def values(**claim: Any) -> dict[str, Any]:
    return {"configuration": {"checkpointClaimTemplate": {"size": "20Gi", **claim}}}


def rights(objects: list[Manifest]) -> dict[tuple[str, str], set[str]]:
    """What may be done with claims, by kind of role and its namespace."""
    found: dict[tuple[str, str], set[str]] = {}
    for role in of_kind(objects, "ClusterRole", "Role"):
        verbs = {
            verb for rule in role["rules"] if CLAIMS in rule["resources"] for verb in rule["verbs"]
        }
        if verbs:
            found[role["kind"], role["metadata"].get("namespace", "")] = verbs
    return found


def test_without_the_value_the_operator_only_looks_whether_a_claim_is_there() -> None:
    assert rights(render()) == {("ClusterRole", ""): {"get"}}
    assert rights(render(WATCHED)) == {("Role", "team-a"): {"get"}, ("Role", "team-b"): {"get"}}


def test_with_the_value_the_operator_may_look_at_a_claim_and_make_one() -> None:
    objects = render(values())
    assert rights(objects) == {("ClusterRole", ""): {"get", "create"}}
    role = named(objects, "ClusterRole", "operator")
    rules = [one for one in role["rules"] if CLAIMS in one["resources"]]
    assert [rule["resources"] for rule in rules] == [[CLAIMS]] * 2


def test_with_namespaces_to_watch_claims_are_read_and_made_in_those_alone() -> None:
    assert rights(render({**WATCHED, **values()})) == {
        ("Role", "team-a"): {"get", "create"},
        ("Role", "team-b"): {"get", "create"},
    }


def test_an_agents_release_gives_no_right_to_claims() -> None:
    assert rights(render({**values(), "operator": {"enabled": False}})) == {}


def test_the_operator_makes_only_claims_of_gpujobs() -> None:
    (policy,) = [
        one
        for one in of_kind(render(), "ValidatingAdmissionPolicy")
        if one["metadata"]["name"] == "gpujob-pods"
    ]
    rules = policy["spec"]["matchConstraints"]["resourceRules"]
    assert [one["operations"] for one in rules if CLAIMS in one["resources"]] == [["CREATE"]]


def test_the_operator_reads_what_the_chart_writes(tmp_path: Path) -> None:
    rendered = render(values(storageClassName="fast", accessModes=["ReadWriteMany"]))
    path = tmp_path / "configuration.yaml"
    path.write_text(named(rendered, "ConfigMap", "configuration")["data"]["configuration.yaml"])
    assert load_configuration_file(path).checkpoint_claim_template == ClaimTemplate(
        ClaimSize(20 * 1024**3), "fast", (AccessMode.READ_WRITE_MANY,)
    )


def test_the_example_of_the_values_is_taken() -> None:
    """As it stands in the comment above the value."""
    lines = (CHART / "values.yaml").read_text(encoding="utf-8").splitlines()
    (line,) = [one for one in lines if one.startswith("#   checkpointClaimTemplate:")]
    assert rights(render({"configuration": yaml.safe_load(line.removeprefix("# "))}))


@pytest.mark.parametrize(
    ("wrong", "named_value"),
    [
        ({"size": 20}, "size"),
        ({"size": "20"}, "size"),
        ({"size": "0Gi"}, "size"),
        ({"storageClass": "fast"}, "storageClass"),
        ({"storageClassName": ""}, "storageClassName"),
        ({"storageClassName": "Fast Disks"}, "storageClassName"),
        ({"accessModes": []}, "accessModes"),
        ({"accessModes": "ReadWriteMany"}, "accessModes"),
        ({"accessModes": ["ReadOnlyMany"]}, "accessModes"),
        ({"accessModes": ["ReadWriteOnce", "ReadWriteOnce"]}, "accessModes"),
    ],
    ids=str,
)
def test_nonsense_is_refused_by_name(wrong: Mapping[str, Any], named_value: str) -> None:
    done = template(values(**wrong))
    assert done.returncode != 0
    assert named_value in done.stderr


def test_a_template_without_a_size_is_refused() -> None:
    done = template({"configuration": {"checkpointClaimTemplate": {"storageClassName": "fast"}}})
    assert done.returncode != 0
    assert "size" in done.stderr
