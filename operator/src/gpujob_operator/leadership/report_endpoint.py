"""The EndpointSlice behind the Service for reports, with only the address of the leader's pod.

Only the leader accepts reports. A Service with a selector would send half of them to a replica that
does not lead. The pod owns the slice, so the slice is deleted with the pod.
"""

import asyncio
import contextlib
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass

from gpujob_operator.client.api_errors import AlreadyExists, ApiError, NotFound
from gpujob_operator.client.kube import ENDPOINT_SLICES, Kube, Manifest
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)

REPEAT_SECONDS = 60.0
RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class ReportService:
    """A Service without a selector, and the pod in which this process runs."""

    namespace: str
    name: str
    port: int
    pod_name: str
    pod_uid: str
    pod_address: str


class ReportEndpoint:
    def __init__(self, kube: Kube, service: ReportService, leads: Callable[[], bool]) -> None:
        self._kube = kube
        self._service = service
        self._leads = leads

    async def keep(self, took_lead: asyncio.Event) -> None:
        """Publishes when `took_lead` is set, and again while this process leads. Runs until
        cancelled.

        It repeats because others may change or delete the slice.
        """
        while True:
            await took_lead.wait()
            while self._leads():
                took_lead.clear()
                seconds = await self._try_to_publish()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(took_lead.wait(), seconds)
            took_lead.clear()

    async def _try_to_publish(self) -> float:
        """Publishes. Returns the seconds until the next time."""
        try:
            await self.publish()
        except ApiError as error:
            log.warning("reports are not sent to this pod yet", error=str(error))
            return RETRY_SECONDS
        return REPEAT_SECONDS

    async def publish(self) -> None:
        """Sends the Service's reports to this pod. Raises `ApiError`."""
        body = endpoint_slice(self._service)
        namespace, name = self._service.namespace, body["metadata"]["name"]
        try:
            await self._kube.patch(ENDPOINT_SLICES, name, body, namespace)
        except NotFound:
            try:
                await self._kube.create(ENDPOINT_SLICES, body, namespace)
            except AlreadyExists:
                # The last leader created the slice meanwhile.
                await self._kube.patch(ENDPOINT_SLICES, name, body, namespace)


def endpoint_slice(service: ReportService) -> Manifest:
    """Returns the slice. The address type is immutable and therefore part of the slice's name."""
    version = ipaddress.ip_address(service.pod_address).version
    owner = {"apiVersion": "v1", "kind": "Pod", "name": service.pod_name, "uid": service.pod_uid}
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{service.name}-ipv{version}",
            "labels": {
                "kubernetes.io/service-name": service.name,
                "endpointslice.kubernetes.io/managed-by": "gpujob-operator",
            },
            "ownerReferences": [owner],
        },
        "addressType": f"IPv{version}",
        "endpoints": [{"addresses": [service.pod_address], "conditions": {"ready": True}}],
        "ports": [{"name": "reports", "port": service.port, "protocol": "TCP"}],
    }
