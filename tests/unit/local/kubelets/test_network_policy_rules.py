"""Packets walked through the chains of a node: what NetworkPolicies say, one case a test.

The walk below stands for the kernel and knows no policy: options, jumps, RETURN and DROP alone.
"""

import ipaddress
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from gpujob_local.kubelets.network_policies.peers import World
from gpujob_local.kubelets.network_policies.rules import FIRST_CHAIN, Chains, chains_of_node
from gpujob_local.kubelets.network_policies.tables import restore_text

Json = dict[str, Any]

NODE = "node-1"
NAMESPACES = [
    {"metadata": {"name": "ours", "labels": {"team": "us"}}},
    {"metadata": {"name": "theirs", "labels": {"team": "them"}}},
]


def pod(name: str, address: str, namespace: str = "ours", **changes: Any) -> Json:
    ports = [{"name": "web", "containerPort": 8080}, {"name": "names", "containerPort": 53}]
    ports[1]["protocol"] = "UDP"
    made: Json = {
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}},
        "spec": {"nodeName": NODE, "containers": [{"ports": ports}]},
        "status": {"podIP": address, "phase": "Running"},
    }
    for level, values in changes.items():
        made[level] |= values
    return made


SERVER, CLIENT = pod("server", "10.200.1.2"), pod("client", "10.200.1.3")
STRANGER = pod("stranger", "10.200.2.4", "theirs", spec={"nodeName": "node-2"})
OUTSIDE = "10.199.0.1"


def policy(spec: Json, name: str = "one") -> Json:
    return {"metadata": {"name": name, "namespace": "ours", "uid": name}, "spec": spec}


def ingress(*rules: Json, selector: Json | None = None) -> Json:
    selected = {"matchLabels": {"app": "server"}} if selector is None else selector
    return policy({"podSelector": selected, "policyTypes": ["Ingress"], "ingress": list(rules)})


def egress(*rules: Json) -> Json:
    selected = {"matchLabels": {"app": "client"}}
    return policy({"podSelector": selected, "policyTypes": ["Egress"], "egress": list(rules)})


def chains(*policies: Json, pods: tuple[Json, ...] = (SERVER, CLIENT, STRANGER)) -> Chains:
    return chains_of_node(NODE, World.of(pods, NAMESPACES), policies)


def passes(
    found: Chains, source: str, destination: str, port: int = 8080, protocol: str = "tcp"
) -> bool:
    """Whether the first packet of a connection gets through the node."""
    packet = {"-s": source, "-d": destination, "-p": protocol, "--dport": str(port)}
    return _walk(found, FIRST_CHAIN, packet)


def _walk(found: Chains, chain: str, packet: Mapping[str, str]) -> bool:
    for rule in found[chain]:
        conditions, target = dict(_pairs(rule)), rule.rpartition("-j ")[2]
        if not all(_meets(packet, *one) for one in conditions.items() if one[0] != "-j"):
            continue
        if target == "RETURN":
            return True
        if target == "DROP" or not _walk(found, target, packet):
            return False
    return True


def _pairs(rule: str) -> Iterator[tuple[str, str]]:
    words = rule.split()
    yield from zip(words[::2], words[1::2], strict=True)


def _meets(packet: Mapping[str, str], option: str, value: str) -> bool:
    if option in ("-m", "--ctstate"):  # nothing was answered yet
        return False
    if option == "--dport":
        first, _, last = value.partition(":")
        return int(first) <= int(packet[option]) <= int(last or first)
    if option == "-p":
        return packet[option] == value
    return ipaddress.ip_address(packet[option]) in ipaddress.ip_network(value)


def ip(of: Json) -> str:
    return of["status"]["podIP"]


def test_without_a_policy_everybody_reaches_everybody() -> None:
    found = chains()
    assert list(found) == [FIRST_CHAIN]
    assert passes(found, ip(STRANGER), ip(SERVER))


def test_a_policy_without_rules_shuts_the_pod_and_no_other_one() -> None:
    found = chains(ingress())
    assert not passes(found, ip(CLIENT), ip(SERVER))
    assert passes(found, ip(SERVER), ip(CLIENT)), "of the other direction nothing was said"
    assert passes(found, ip(STRANGER), ip(CLIENT))
    assert passes(found, ip(SERVER), ip(SERVER)), "nothing comes between a pod and itself"


def test_an_empty_selector_means_all_pods_of_the_policys_namespace() -> None:
    found = chains(ingress(selector={}))
    assert not passes(found, ip(CLIENT), ip(SERVER))
    assert not passes(found, ip(SERVER), ip(CLIENT))
    theirs = chains(ingress(selector={}), pods=(CLIENT, pod("other", "10.200.1.9", "theirs")))
    assert passes(theirs, ip(CLIENT), "10.200.1.9")


def test_a_rule_without_peers_and_ports_lets_all_in() -> None:
    assert passes(chains(ingress({})), OUTSIDE, ip(SERVER), 1)


def test_both_ends_have_to_allow_it() -> None:
    to_server = {"to": [{"podSelector": {"matchLabels": {"app": "server"}}}]}
    assert passes(chains(egress(to_server)), ip(CLIENT), ip(SERVER))
    assert not passes(chains(egress(to_server), ingress()), ip(CLIENT), ip(SERVER))
    assert not passes(chains(egress(), ingress({})), ip(CLIENT), ip(SERVER))


def test_of_several_policies_each_adds_what_it_allows() -> None:
    from_client = ingress({"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]})
    from_client["metadata"]["uid"] = "another"
    found = chains(ingress(), from_client)
    assert passes(found, ip(CLIENT), ip(SERVER))
    assert not passes(found, ip(STRANGER), ip(SERVER))


@pytest.mark.parametrize(
    ("peer", "let_in"),
    [
        ({"podSelector": {}}, {ip(CLIENT)}),
        ({"namespaceSelector": {}}, {ip(CLIENT), ip(STRANGER)}),
        ({"namespaceSelector": {"matchLabels": {"team": "them"}}}, {ip(STRANGER)}),
        (
            {
                "namespaceSelector": {},
                "podSelector": {"matchExpressions": [{"key": "app", "operator": "Exists"}]},
            },
            {ip(CLIENT), ip(STRANGER)},
        ),
        (
            {
                "namespaceSelector": {"matchLabels": {"team": "them"}},
                "podSelector": {"matchLabels": {"app": "client"}},
            },
            set(),
        ),
        ({"ipBlock": {"cidr": "10.199.0.0/24"}}, {OUTSIDE}),
        ({"ipBlock": {"cidr": "10.200.0.0/16", "except": ["10.200.2.0/24"]}}, {ip(CLIENT)}),
        ({"ipBlock": {"cidr": "10.200.2.0/24", "except": ["10.200.0.0/16"]}}, set()),
        ({"ipBlock": {"cidr": "fd00::/8"}}, set()),
    ],
)
def test_peers(peer: Json, let_in: set[str]) -> None:
    found = chains(ingress({"from": [peer]}))
    sources = {ip(CLIENT), ip(STRANGER), OUTSIDE}
    assert {one for one in sources if passes(found, one, ip(SERVER))} == let_in


@pytest.mark.parametrize(
    ("operator", "values", "let_in"),
    [
        ("In", ["client", "x"], {ip(CLIENT)}),
        ("NotIn", ["client"], {ip(STRANGER)}),
        ("Exists", [], {ip(CLIENT), ip(STRANGER)}),
        ("DoesNotExist", [], set()),
    ],
)
def test_expressions_of_selectors(operator: str, values: list[str], let_in: set[str]) -> None:
    expression = {"key": "app", "operator": operator, "values": values}
    peer = {"namespaceSelector": {}, "podSelector": {"matchExpressions": [expression]}}
    found = chains(ingress({"from": [peer]}))
    sources = (ip(CLIENT), ip(STRANGER))
    assert {one for one in sources if passes(found, one, ip(SERVER))} == let_in


@pytest.mark.parametrize(
    ("port", "allowed", "refused"),
    [
        ({"port": 8080}, [("tcp", 8080)], [("udp", 8080), ("tcp", 8081)]),
        ({"port": 80, "endPort": 90}, [("tcp", 80), ("tcp", 90)], [("tcp", 79), ("tcp", 91)]),
        ({"protocol": "UDP"}, [("udp", 7)], [("tcp", 7)]),
        ({"port": "web"}, [("tcp", 8080)], [("tcp", 53)]),
        ({"port": "names", "protocol": "UDP"}, [("udp", 53)], [("tcp", 53)]),
        ({"port": "names"}, [], [("tcp", 53), ("udp", 53)]),
        ({"port": "unknown"}, [], [("tcp", 8080)]),
    ],
)
def test_ports(port: Json, allowed: list[tuple[str, int]], refused: list[tuple[str, int]]) -> None:
    to_server = {"to": [{"podSelector": {"matchLabels": {"app": "server"}}}], "ports": [port]}
    for found in (chains(ingress({"ports": [port]})), chains(egress(to_server))):
        for wanted, cases in ((True, allowed), (False, refused)):
            for protocol, number in cases:
                got = passes(found, ip(CLIENT), ip(SERVER), number, protocol)
                assert got == wanted, (protocol, number)


def test_a_peer_whose_pod_has_ended_is_let_in_no_more() -> None:
    """Its address may be another pod's by now."""
    allowed = ingress({"from": [{"podSelector": {"matchLabels": {"app": "client"}}}]})
    ended = pod("client", ip(CLIENT), status={"phase": "Succeeded"})
    assert passes(chains(allowed), ip(CLIENT), ip(SERVER))
    assert not passes(chains(allowed, pods=(SERVER, ended)), ip(CLIENT), ip(SERVER))


def test_pods_of_other_nodes_and_of_the_nodes_own_network_have_no_chain() -> None:
    elsewhere = pod("server", "10.200.2.2", spec={"nodeName": "node-2"})
    hosts = pod("server", "10.199.0.11", spec={"hostNetwork": True})
    assert list(chains(ingress(), pods=(elsewhere, hosts))) == [FIRST_CHAIN]


def test_a_change_empties_what_stays_and_removes_what_goes() -> None:
    before = restore_text(chains(ingress()), "")
    assert before.splitlines()[0] == "*mangle"
    assert "-I FORWARD -j network-policies" in before
    saved = (
        ":KUBE-PROXY-CANARY - [0:0]\n:network-policies - [0:0]\n:ingress-10.200.1.2 - [0:0]\n"
        "-A FORWARD -j network-policies\n-A INPUT -j network-policies\n"
    )
    after = restore_text(chains(), saved)
    assert "-X ingress-10.200.1.2" in after
    assert after.index(":ingress-10.200.1.2 ") < after.index("-X ingress-10.200.1.2")
    assert "-I" not in after
    assert "KUBE" not in after, "another program's chains stay as they are"
