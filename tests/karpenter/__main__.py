"""`python -m tests.karpenter`: whether Karpenter consolidates the nodes of workers.

Starts a control plane and Karpenter with its provider of played nodes, and shows for each case what
became of its node. Not part of `make test`: the first time Karpenter is built (minutes).
"""

import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import yaml

from gpujob_local.control_plane.api_client import ApiClient, ApiError
from gpujob_local.control_plane.control_plane import ControlPlane, ControlPlaneOptions
from gpujob_local.control_plane.go_sources import source_folder
from gpujob_local.control_plane.ports import free_port
from gpujob_local.control_plane.tools import Pins, find_tools
from gpujob_local.processes.processes import MARKER, Child, start_child, stop_child
from gpujob_operator.decide.model.snapshot import LABEL_HOSTNAME
from tests.karpenter import manifests
from tests.karpenter.manifests import CASES, LABEL_CASE, NAMESPACE, Case
from tests.karpenter.played_kubelets import play

MODULE = "sigs.k8s.io/karpenter"
ROUND_SECONDS = 0.5
STEP_LIMIT_SECONDS = 180.0
# So long after the last node that was consolidated the others are taken to stay.
QUIET_SECONDS = 90.0
LOOK_LIMIT_SECONDS = 420.0
REFUSALS = ("Unconsolidatable", "DisruptionBlocked")
CHARACTERS_SHOWN = 150


@dataclass(frozen=True, slots=True)
class Seen:
    """What became of the node of one case."""

    case: str
    disruption: str
    names_node: str
    do_not_disrupt: bool
    consolidated: bool
    # Until the node had gone, since the filling pod was deleted.
    seconds: float | None
    # Karpenter's newest words about it, from its events on the node and its claim.
    why_not: str


def main() -> int:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="gpujob-karpenter-")))
        plane = ControlPlane(
            folder / "plane",
            find_tools("kubernetes"),
            "karpenter",
            ControlPlaneOptions(node_grace_seconds=3600),
        )
        stack.callback(plane.stop)
        plane.start(_define)
        karpenter = _start_karpenter(plane, folder)
        stack.callback(lambda: stop_child(karpenter, grace_seconds=0))
        seen = _look(plane.client(), karpenter)
    _show(seen)
    if not any(one.consolidated for one in seen):
        _say("no node was consolidated, not even that of a pod that may run anywhere")
        return 1
    return 0


def _define(client: ApiClient) -> None:
    """Karpenter's kinds, from the sources of the pinned version."""
    sources = source_folder("karpenter", MODULE, _say)
    kinds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    for folder in ("pkg/apis/crds", "kwok/apis/crds"):
        for file in sorted((sources / folder).glob("*.yaml")):
            client.create(kinds, yaml.safe_load(file.read_text()))


def _start_karpenter(plane: ControlPlane, folder: Path) -> Child:
    types = folder / "instance_types.json"
    types.write_text(json.dumps(manifests.instance_types()))
    command = [str(find_tools("karpenter")["karpenter"]), "--disable-leader-election=true"]
    command += [f"--instance-types-file-path={types}"]
    command += [f"--metrics-port={free_port()}", f"--health-probe-port={free_port()}"]
    environment = {MARKER: plane.marker_value, "PATH": os.defpath, "HOME": str(folder)}
    environment |= {"KUBECONFIG": str(plane.kubeconfig), "SYSTEM_NAMESPACE": "kube-system"}
    return start_child("karpenter", command, environment, folder / "karpenter.log", folder=folder)


def _look(client: ApiClient, karpenter: Child) -> list[Seen]:
    _wait(client, karpenter, lambda: _create_pools(client), "kinds of Karpenter")
    client.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    _wait(client, karpenter, lambda: _has_account(client), "the namespace's account")
    for case in CASES:
        client.create(pods, manifests.filler(case))
    _wait(client, karpenter, lambda: _running(client) == len(CASES), "a node a case")
    nodes = {case: _node(client, f"filler-{case.name}") for case in CASES}
    made = {
        case: manifests.worker(case, node, _hostname(client, node)) for case, node in nodes.items()
    }
    for pod in made.values():
        client.create(pods, pod)
    _wait(client, karpenter, lambda: _running(client) == 2 * len(CASES), "workers that run")
    _say("every worker runs beside a pod that fills its node; deleting those pods")
    for case in CASES:
        client.delete(f"{pods}/filler-{case.name}")
    gone = _follow(client, karpenter, nodes)
    return [
        Seen(
            case.name,
            case.disruption.value,
            case.named.value,
            manifests.keeps_node(made[case]),
            case in gone,
            gone.get(case),
            "" if case in gone else _why_not(client, case, nodes[case]),
        )
        for case in CASES
    ]


def _create_pools(client: ApiClient) -> bool:
    try:
        client.create("/apis/karpenter.kwok.sh/v1alpha1/kwoknodeclasses", manifests.node_class())
    except ApiError as error:
        if error.code == 404:
            return False
        raise
    for case in CASES:
        client.create("/apis/karpenter.sh/v1/nodepools", manifests.node_pool(case))
    return True


def _has_account(client: ApiClient) -> bool:
    try:
        client.get(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/default")
    except ApiError:
        return False
    return True


def _wait(client: ApiClient, karpenter: Child, met: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + STEP_LIMIT_SECONDS
    while not met():
        _round(client, karpenter)
        if time.monotonic() > deadline:
            log = karpenter.log_tail()
            raise RuntimeError(f"{what}: not there after {STEP_LIMIT_SECONDS:.0f} s\n{log}")


def _round(client: ApiClient, karpenter: Child) -> None:
    if not karpenter.alive():
        raise RuntimeError(f"Karpenter ended:\n{karpenter.log_tail()}")
    play(client)
    time.sleep(ROUND_SECONDS)


def _follow(client: ApiClient, karpenter: Child, nodes: dict[Case, str]) -> dict[Case, float]:
    """Seconds until each of the nodes that went had gone."""
    gone: dict[Case, float] = {}
    start = last = time.monotonic()
    while last - start < LOOK_LIMIT_SECONDS:
        _round(client, karpenter)
        now = time.monotonic()
        there = {one["metadata"]["name"] for one in client.get("/api/v1/nodes")["items"]}
        for case, node in nodes.items():
            if node not in there and case not in gone:
                gone[case] = round(now - start, 1)
                last = now
                _say(f"{case.name}: the node has gone after {gone[case]:.0f} s")
        if now - start > LOOK_LIMIT_SECONDS or (gone and now - last > QUIET_SECONDS):
            break
    return gone


def _running(client: ApiClient) -> int:
    pods = client.get(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    return sum(pod["status"].get("phase") == "Running" for pod in pods)


def _node(client: ApiClient, pod: str) -> str:
    return client.get(f"/api/v1/namespaces/{NAMESPACE}/pods/{pod}")["spec"]["nodeName"]


def _hostname(client: ApiClient, node: str) -> str:
    return client.get(f"/api/v1/nodes/{node}")["metadata"]["labels"][LABEL_HOSTNAME]


def _why_not(client: ApiClient, case: Case, node: str) -> str:
    claims = client.get("/apis/karpenter.sh/v1/nodeclaims")["items"]
    names = {node} | {
        one["metadata"]["name"]
        for one in claims
        if one["metadata"].get("labels", {}).get(LABEL_CASE) == case.name
    }
    events = [
        event
        for event in client.get("/api/v1/events")["items"]
        if event["involvedObject"].get("name") in names and event["reason"] in REFUSALS
    ]
    newest = max(events, key=lambda event: event["lastTimestamp"], default=None)
    return f"{newest['reason']}: {newest['message']}" if newest is not None else ""


def _show(seen: list[Seen]) -> None:
    sys.stdout.write(
        "| pod | names its node by | do-not-disrupt | node consolidated | Karpenter says |\n"
    )
    sys.stdout.write("|---|---|---|---|---|\n")
    for one in seen:
        after = f"after {one.seconds:.0f} s" if one.seconds is not None else "no"
        cells = (one.case, one.names_node, _word(one.do_not_disrupt), after, _short(one.why_not))
        sys.stdout.write(f"| {' | '.join(cells)} |\n")
    line = {
        "karpenter": Pins.read("karpenter").versions[MODULE],
        "cases": [asdict(s) for s in seen],
    }
    sys.stdout.write(json.dumps(line) + "\n")


def _short(text: str) -> str:
    return text if len(text) <= CHARACTERS_SHOWN else f"{text[:CHARACTERS_SHOWN]}..."


def _word(value: bool) -> str:
    return "yes" if value else "no"


def _say(text: str) -> None:
    sys.stderr.write(f"karpenter: {text}\n")
    sys.stderr.flush()


if __name__ == "__main__":
    raise SystemExit(main())
