"""The guides, word by word: every command of theirs is played, or it is said here why not."""

from collections.abc import Callable, Generator, Mapping
from contextlib import suppress
from typing import Any

import pytest
import yaml

from gpujob_local.control_plane.control_plane import ClusterError
from gpujob_local.kubelets.cluster import KubeletCluster
from gpujob_local.kubelets.node import KubeletNode
from tests.harness.audit import AuditTrail
from tests.harness.ground import Team
from tests.harness.guides import Shell, commands
from tests.harness.release import Release, gpus_ready
from tests.harness.repository import ROOT
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900)]

GUIDES = ROOT / "docs" / "guides"
# No container engine here: the images are there already, under the names without a registry.
ENGINE = ("make images", "docker ", "kind ")
LEFT_OUT: Mapping[str, tuple[str, ...]] = {
    "install": ENGINE,
    "kind": ENGINE,
    "security": (),
    "upgrade": ENGINE,
}
# What a reader has, or puts in. CPU cards stand in for GPUs in the guides for nodes with GPUs.
CPU_CARDS = "helm install gpujob charts/gpujob --values examples/kind/values.yaml"
AGENT_CPU_CARDS = "helm install gpujob-agent charts/gpujob --values examples/kind/values.yaml"
WORDS: Mapping[str, str] = {
    " --watch": "",
    "registry.example.org/ml/": "",
    "node NODE ": "node node-1 ",
    "gpujob-worker2": "node-2",
}
VOLUME_OF_FIRST = "gpujob-first"
SHARED_FOLDER = "private/var/lib/gpujob"
RELEASES = {"gpujob": "gpujob-system", "gpujob-agent": "gpujob-agents"}


@pytest.fixture
def cluster(release: Release, audit: AuditTrail) -> Generator[KubeletCluster]:
    """Without a release, as a guide begins; this session's is there again afterwards."""
    uninstall_all(release.cluster)
    yield release.cluster
    try:
        uninstall_all(release.cluster)
    finally:
        Release.install(release.cluster)
    audit.forget()


def uninstall_all(cluster: KubeletCluster) -> None:
    for name, namespace in RELEASES.items():
        where = ("--namespace", namespace, "--ignore-not-found", "--wait")
        cluster.command("helm", "uninstall", name, *where)


def played(guide: str) -> list[str]:
    """Its commands without those that are left out."""
    return [one for one in commands(GUIDES / f"{guide}.md") if not one.startswith(LEFT_OUT[guide])]


def play(guide: str, shell: Shell, before: Mapping[str, Callable[[], object]]) -> None:
    """All commands, each after what a reader sees or does before it, by the command's beginning."""
    waits = dict(before)
    for command in played(guide):
        for beginning in [one for one in waits if command.startswith(one)]:
            waits.pop(beginning)()
        shell.play(command)
    assert not waits, "the guide has no such commands any more"


@pytest.mark.parametrize("guide", LEFT_OUT)
def test_a_guide_has_commands(guide: str) -> None:
    assert played(guide)


def test_install(cluster: KubeletCluster) -> None:
    words = {
        "helm install gpujob charts/gpujob": CPU_CARDS,
        "helm install gpujob-agent charts/gpujob": AGENT_CPU_CARDS,
    }
    cluster.kubectl("create", "namespace", "team")
    try:
        play(
            "install",
            Shell(cluster, {**WORDS, **words}),
            {
                # Two releases are the other way to install it.
                "helm install gpujob charts/gpujob --namespace gpujob-system --set agent.enabled": (
                    lambda: uninstall_all(cluster)
                ),
            },
        )
        wait_until(lambda: gpus_ready(cluster), 90, "the agent of the second release has measured")
    finally:
        # A release goes before its namespace, which would take away what Helm knows of it.
        uninstall_all(cluster)
        flags = ("--ignore-not-found", "--wait=false")
        cluster.kubectl("delete", "namespace", "team", "gpujob-agents", *flags)


def test_upgrade(release: Release, audit: AuditTrail) -> None:
    """It begins with the release that the scenes have, and ends without one."""
    try:
        play("upgrade", Shell(release.cluster, WORDS), {})
        assert release.cluster.kubectl("get", "crds", "gpujobs.gpujob.dev")
    finally:
        uninstall_all(release.cluster)
        audit.forget()
        Release.install(release.cluster)


def test_security(team: Team) -> None:
    """The namespace takes jobs that name no user: the operator adds what "restricted" asks for."""
    label = "namespace team "
    play("security", Shell(team.cluster, {label: f"namespace {team.namespace} --overwrite "}), {})
    team.submit("first", steps=4)
    team.wait_for_phase("first", "Succeeded")


@pytest.fixture
def spot_node(cluster: KubeletCluster) -> Generator[KubeletNode]:
    """The nodes of examples/kind/cluster.yaml: one is a spot node, both have one folder."""
    folder = cluster.directory / "volumes" / "kind"
    folder.mkdir(parents=True)
    for node in cluster.nodes.values():
        (node.folder / SHARED_FOLDER).symlink_to(folder)
    cluster.kubectl("label", "node", "node-2", "gpujob.dev/spot=true")
    yield cluster.nodes["node-2"]
    cluster.kubectl("label", "node", "node-2", "gpujob.dev/spot-")
    with suppress(ClusterError):
        # The guide takes it away itself, if it comes that far.
        cluster.kubectl("taint", "node", "node-2", "gpujob.dev/reclaim-")


@pytest.fixture
def volume_of_first(cluster: KubeletCluster, spot_node: KubeletNode) -> Generator[None]:
    """What kind's default storage class would make for the claim of the first job."""
    text = (ROOT / "examples" / "kind" / "checkpoints.yaml").read_text(encoding="utf-8")
    volume: dict[str, Any] = next(yaml.safe_load_all(text))
    volume["metadata"]["name"] = VOLUME_OF_FIRST
    volume["spec"] |= {
        "accessModes": ["ReadWriteOnce"],
        "claimRef": {"namespace": "default", "name": "first"},
    }
    cluster.client().create("/api/v1/persistentvolumes", volume)
    yield
    cluster.kubectl("delete", "persistentvolume", VOLUME_OF_FIRST, "--wait=false")


@pytest.fixture
def users_jobs(cluster: KubeletCluster) -> Generator[Team]:
    """Those of the namespace `default`, removed afterwards."""
    yield Team(cluster, "default")
    cluster.kubectl("delete", "gpujobs,persistentvolumeclaims", "--all", "--wait=false")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("volume_of_first")
def test_kind(cluster: KubeletCluster, spot_node: KubeletNode, users_jobs: Team) -> None:
    team = users_jobs

    def travels() -> None:
        team.wait_for_phase("gpt", "Running")
        assert team.node_of("gpt") == spot_node.plan.name
        team.wait_for_checkpoint("gpt")

    def arrived() -> None:
        wait_until(lambda: team.status("gpt").get("attempt") == 2, 180, "gpt moves")
        team.wait_for_phase("gpt", "Running")
        assert team.node_of("gpt") != spot_node.plan.name
        wait_until(lambda: team.status("gpt").get("resumedFromStep", 0) > 0, 180, "it says so")

    play(
        "kind",
        Shell(cluster, WORDS),
        {
            "kubectl taint node gpujob-worker2 gpujob.dev/reclaim=": travels,
            "kubectl gpujob report gpt": arrived,
        },
    )
    assert team.status("first")["phase"] == "Succeeded"
    for name in ("classifier", "co-tenant"):
        wait_until(lambda name=name: team.said(name) != "", 60, f"{name} is decided upon")
