"""The peers of NetworkPolicies: pods and addresses that a selector or an address block
means. Pure.
"""

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class Peer:
    """The other end: a pod, or every address of a network. "" is everyone."""

    network: str
    pod: Json | None = None


EVERYBODY = Peer("")


@dataclass(frozen=True, slots=True)
class World:
    """All pods that have their own address, by namespace, and the namespaces' labels."""

    pods: Sequence[Json]
    namespaces: Mapping[str, Mapping[str, str]]

    @classmethod
    def of(cls, pods: Iterable[Json], namespaces: Iterable[Json]) -> "World":
        labels = {item["metadata"]["name"]: labels_of(item) for item in namespaces}
        return cls([pod for pod in pods if has_address(pod)], labels)

    def peers(self, wanted: Sequence[Json] | None, namespace: str) -> list[Peer]:
        """Returns the peers of a rule's `from` or `to`, in a policy of this namespace."""
        if not wanted:
            return [EVERYBODY]
        return [peer for one in wanted for peer in self._peers_of(one, namespace)]

    def _peers_of(self, wanted: Json, namespace: str) -> list[Peer]:
        if block := wanted.get("ipBlock"):
            return [Peer(str(network)) for network in networks(block)]
        return [
            Peer(address(pod), pod)
            for pod in self.pods
            if self._in(wanted.get("namespaceSelector"), pod, namespace)
            and selects(wanted.get("podSelector") or {}, labels_of(pod))
        ]

    def _in(self, selector: Json | None, pod: Json, namespace: str) -> bool:
        """Returns whether the pod's namespace is selected. Without a selector, it is the policy's
        own.
        """
        where = pod["metadata"]["namespace"]
        if selector is None:
            return where == namespace
        return where in self.namespaces and selects(selector, self.namespaces[where])


def has_address(pod: Json) -> bool:
    """False for pods in a node's own network, and for ended pods, whose address may be
    another's.
    """
    status = pod.get("status", {})
    own_network = not pod["spec"].get("hostNetwork")
    return own_network and bool(status.get("podIP")) and status.get("phase") not in ENDED


def address(pod: Json) -> str:
    return str(pod["status"]["podIP"])


def labels_of(item: Json) -> Mapping[str, str]:
    return item["metadata"].get("labels") or {}


def selects(selector: Json, labels: Mapping[str, str]) -> bool:
    """Returns whether a label selector matches. An empty one selects everything."""
    exact = (selector.get("matchLabels") or {}).items() <= labels.items()
    return exact and all(_holds(one, labels) for one in selector.get("matchExpressions") or [])


def _holds(expression: Json, labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case other:
            raise ValueError(f"no operator of a label selector: {other}")


def networks(block: Json) -> list[ipaddress.IPv4Network]:
    """Returns the block without its exceptions. Nodes and pods here have no IPv6 address."""
    whole = ipaddress.ip_network(block["cidr"], strict=False)
    if not isinstance(whole, ipaddress.IPv4Network):
        return []
    left = [whole]
    for text in block.get("except") or []:
        left = [part for one in left for part in _without(one, ipaddress.IPv4Network(text))]
    return left


def _without(
    network: ipaddress.IPv4Network, exception: ipaddress.IPv4Network
) -> list[ipaddress.IPv4Network]:
    if network.subnet_of(exception):
        return []
    if not exception.subnet_of(network):
        return [network]
    return list(network.address_exclude(exception))
