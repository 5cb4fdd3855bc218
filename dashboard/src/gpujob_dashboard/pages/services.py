"""The services: whether each answers, by which backend, and how fast."""

from collections.abc import Mapping
from typing import Any

from gpujob_api.gpuservice import GPUService
from gpujob_dashboard.pages.contents import Page, Query, Section, cut, link
from gpujob_dashboard.rights import Rights
from gpujob_dashboard.watched import State

_PLACE = "/services"


def services_page(state: State, rights: Rights, query: Query) -> Page:
    """Returns the page of the services that the viewer may list."""
    seen = [one for one in state.services if rights.may_see_service(one)]
    shown = cut(seen, query, _PLACE)
    values = {"rows": [_row(one) for one in shown.rows], "cut": shown}
    return Page("Services", {"services": Section("services/list.html", values)}, _PLACE)


def _row(service: GPUService) -> Mapping[str, Any]:
    metadata, status = service.metadata, service.status
    summary, traffic = status.summary, status.traffic
    return {
        "name": metadata.key,
        # The jobs of its replicas.
        "link": link("/", {"namespace": metadata.namespace, "name": f"{metadata.name}-"}),
        "ready": summary.ready,
        "backend": summary.backend,
        "requests": f"{traffic.requests_per_second:g}" if traffic is not None else "",
        "latency": summary.latency,
        "reason": summary.reason,
    }
