"""Resolves names of pods behind headless Services on process nodes, as a cluster's DNS does.

A local process uses the machine's own resolver, which has no pods. So a name of the form
HOSTNAME.SERVICE.NAMESPACE.svc in a container's variables or command is replaced by the pod's
address before the process starts. Until the name has an address, the container waits and reports
that.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import urlencode

from gpujob_local.control_plane.api_client import ApiError
from gpujob_local.kubelet.node_api import NodeApi
from gpujob_local.kubelet.pod_environment import ContainerConfigError, Json

_LABEL = "[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAME = re.compile(
    rf"(?<![\w.-])({_LABEL})\.({_LABEL})\.({_LABEL})\.svc(?:\.cluster\.local)?(?![\w-]|\.\w)"
)
_OVER = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class HostNames:
    """The names of pods and their addresses."""

    addresses: dict[str, str]

    def rewrite(self, text: str) -> str:
        """Returns the text with every name in it replaced by its address."""
        return _NAME.sub(lambda match: self.addresses.get(match.group(0), match.group(0)), text)


async def find_addresses(api: NodeApi, texts: Iterable[str]) -> HostNames:
    """Finds all names in the texts. Raises `ContainerConfigError` for a name without an address
    yet.
    """
    found = {match.group(0): match.groups() for text in texts for match in _NAME.finditer(text)}
    return HostNames(
        {
            name: await _address(api, name, hostname, service, namespace)
            for name, (hostname, service, namespace) in sorted(found.items())
        }
    )


async def _address(api: NodeApi, name: str, hostname: str, service: str, namespace: str) -> str:
    selector = await _selector(api, name, service, namespace)
    query = urlencode({"labelSelector": ",".join(f"{k}={v}" for k, v in selector.items())})
    pods = await api.get(f"/api/v1/namespaces/{namespace}/pods?{query}")
    for pod in pods["items"]:
        status = pod.get("status", {})
        named = (pod["spec"].get("hostname"), pod["spec"].get("subdomain")) == (hostname, service)
        if named and status.get("podIP") and status.get("phase") not in _OVER:
            return status["podIP"]
    raise ContainerConfigError(f"host name {name} has no address yet")


async def _selector(api: NodeApi, name: str, service: str, namespace: str) -> dict[str, str]:
    try:
        found: Json = await api.get(f"/api/v1/namespaces/{namespace}/services/{service}")
    except ApiError as error:
        if error.code != 404:
            raise
        raise ContainerConfigError(f'host name {name}: service "{service}" not found') from None
    spec = found["spec"]
    if spec.get("clusterIP") != "None" or not spec.get("selector"):
        raise ContainerConfigError(f'host name {name}: service "{service}" is not headless')
    return spec["selector"]
