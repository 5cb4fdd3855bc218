"""The traffic that NetworkPolicies allow to the pods of one node, as chains of iptables. Pure.

A pod that a policy selects has a chain for each direction that the policy covers. Packets that no
rule there returns to the first chain are dropped. A pod without such a chain is reachable by all.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from gpujob_local.kubelets.network_policies.peers import (
    Json,
    Peer,
    World,
    address,
    labels_of,
    selects,
)

FIRST_CHAIN = "network-policies"
ALLOW, DROP = "-j RETURN", "-j DROP"

Chains = dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Direction:
    """Names in a policy, and the iptables options for the pod and for the other end."""

    policy_type: str
    rules: str
    peers: str
    pod_option: str
    peer_option: str

    def chain(self, pod: Json) -> str:
        return f"{self.rules}-{address(pod)}"


INGRESS = Direction("Ingress", "ingress", "from", "-d", "-s")
EGRESS = Direction("Egress", "egress", "to", "-s", "-d")


def chains_of_node(node: str, world: World, policies: Iterable[Json]) -> Chains:
    """Returns the chains by name. Packets enter at the first one."""
    all_policies = sorted(policies, key=lambda one: one["metadata"]["uid"])
    # Answers to allowed connections are allowed.
    chains: Chains = {FIRST_CHAIN: [f"-m conntrack --ctstate RELATED,ESTABLISHED {ALLOW}"]}
    local = [pod for pod in world.pods if pod["spec"].get("nodeName") == node]
    for pod in sorted(local, key=address):
        for direction in (EGRESS, INGRESS):
            if found := [one for one in all_policies if _concerns(one, pod, direction)]:
                name = direction.chain(pod)
                chains[FIRST_CHAIN].append(f"{direction.pod_option} {address(pod)} -j {name}")
                chains[name] = list(_rules(pod, found, direction, world))
    return chains


def _concerns(policy: Json, pod: Json, direction: Direction) -> bool:
    spec = policy["spec"]
    return (
        policy["metadata"]["namespace"] == pod["metadata"]["namespace"]
        and direction.policy_type in spec["policyTypes"]
        and selects(spec.get("podSelector") or {}, labels_of(pod))
    )


def _rules(
    pod: Json, policies: Iterable[Json], direction: Direction, world: World
) -> Iterator[str]:
    # No policy applies between a pod and itself.
    yield f"{direction.peer_option} {address(pod)} {ALLOW}"
    for policy in policies:
        namespace = policy["metadata"]["namespace"]
        for rule in policy["spec"].get(direction.rules) or []:
            for peer in world.peers(rule.get(direction.peers), namespace):
                yield from _allowed(pod, peer, rule.get("ports"), direction)
    yield DROP


def _allowed(
    pod: Json, peer: Peer, ports: list[Json] | None, direction: Direction
) -> Iterator[str]:
    """Yields one rule per port. A named port is that of the pod at which the connection ends."""
    end = pod if direction is INGRESS else peer.pod
    network = f"{direction.peer_option} {peer.network}" if peer.network else ""
    for port in ports or [{}]:
        for words in _port_words(port, end):
            yield " ".join(part for part in (network, words, ALLOW) if part)


def _port_words(port: Json, end: Json | None) -> list[str]:
    """Returns options for one entry of `ports`; empty if no pod has a port of that name.

    A name in an egress rule to everyone or to a block of addresses cannot be resolved.
    """
    if not port:
        return [""]
    protocol = port.get("protocol", "TCP")
    option, wanted = f"-p {protocol.lower()}", port.get("port")
    if wanted is None:
        return [option]
    if isinstance(wanted, int):
        last = f":{port['endPort']}" if "endPort" in port else ""
        return [f"{option} --dport {wanted}{last}"]
    return [f"{option} --dport {number}" for number in _numbers(end, wanted, protocol)]


def _numbers(pod: Json | None, name: str, protocol: str) -> list[int]:
    spec = pod["spec"] if pod else {}
    containers = [*spec.get("containers", []), *spec.get("initContainers", [])]
    return [
        port["containerPort"]
        for container in containers
        for port in container.get("ports") or []
        if port.get("name") == name and port.get("protocol", "TCP") == protocol
    ]
