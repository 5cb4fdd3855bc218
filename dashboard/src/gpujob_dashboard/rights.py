"""The rights of a viewer, as the API server reviews them."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuservice import GPUService
from gpujob_api.meta import GROUP
from gpujob_dashboard.api_server import APIServer

# An answer is believed for this long. With the ten seconds for which the API server remembers a
# token, and the time between two reviews of a stream, that stays below half a minute.
REVIEW_SECONDS = 3.0
REVIEWS_AT_ONCE = 10
NAMESPACES_MAX = 2000
_TOKENS = "/apis/authentication.k8s.io/v1/tokenreviews"
_ACCESS = "/apis/authorization.k8s.io/v1/subjectaccessreviews"


@dataclass(frozen=True, slots=True)
class Rights:
    """What a viewer may see. `namespaces` are those whose jobs they may list, and `services` those
    whose services; None means all.
    """

    namespaces: frozenset[str] | None = None
    nodes: bool = True
    queues: bool = True
    services: frozenset[str] | None = None

    @property
    def all_jobs(self) -> bool:
        return self.namespaces is None

    def may_see(self, job: GPUJob) -> bool:
        return self.namespaces is None or job.metadata.namespace in self.namespaces

    def may_see_service(self, service: GPUService) -> bool:
        return self.services is None or service.metadata.namespace in self.services

    def within(self, namespace: str) -> frozenset[str]:
        """Returns the namespace if the viewer may list its jobs, else nothing."""
        chosen = frozenset({namespace})
        return chosen if self.namespaces is None else chosen & self.namespaces


ALL = Rights()


@dataclass(frozen=True, slots=True)
class Viewer:
    """A user as the API server knows them."""

    name: str
    # The fields of a review's `spec` that say who it is.
    subject: Mapping[str, Any]


@dataclass(slots=True)
class Reviews:
    """Asks the API server who a token belongs to, and what that user may list."""

    server: APIServer
    seconds: Callable[[], float]
    _known: dict[str, tuple[float, Viewer, Rights]] = field(default_factory=dict)

    async def viewer(self, token: str) -> Viewer | None:
        """Returns the user of a token, or None if the API server does not accept it.

        Raises `APIServerError`.
        """
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token},
        }
        status = (await self.server.post(_TOKENS, body)).get("status") or {}
        user = cast("Mapping[str, Any]", status.get("user") or {})
        if status.get("authenticated") is not True or not user.get("username"):
            return None
        subject = {"user": user["username"]}
        subject |= {name: user[name] for name in ("uid", "groups", "extra") if user.get(name)}
        return Viewer(str(user["username"]), subject)

    async def rights(
        self, token: str, namespaces: Iterable[str], served: Iterable[str] = ()
    ) -> tuple[Viewer, Rights] | None:
        """Returns the user and their rights, or None for a token that is not, or no longer, valid.

        `namespaces` are those with jobs, and `served` those with services. The answer is at most
        `REVIEW_SECONDS` old. Raises `APIServerError`.
        """
        now = self.seconds()
        self._known = {key: one for key, one in self._known.items() if one[0] > now}
        if (known := self._known.get(token)) is not None:
            return known[1], known[2]
        viewer = await self.viewer(token)
        if viewer is None:
            return None
        rights = await self._rights_of(viewer, namespaces, served)
        self._known[token] = now + REVIEW_SECONDS, viewer, rights
        return viewer, rights

    async def _rights_of(
        self, viewer: Viewer, namespaces: Iterable[str], served: Iterable[str]
    ) -> Rights:
        turns = asyncio.Semaphore(REVIEWS_AT_ONCE)

        async def within(resource: str, asked: Iterable[str]) -> frozenset[str] | None:
            """Returns the namespaces in which the viewer may list the resource; None means all."""
            if await self._may_list(viewer, resource):
                return None

            async def review(namespace: str) -> str | None:
                async with turns:
                    return namespace if await self._may_list(viewer, resource, namespace) else None

            chosen = sorted(set(asked))[:NAMESPACES_MAX]
            found = await asyncio.gather(*(review(namespace) for namespace in chosen))
            return frozenset(one for one in found if one is not None)

        jobs, nodes, queues, services = await asyncio.gather(
            within("gpujobs", namespaces),
            self._may_list(viewer, "gpunodes"),
            self._may_list(viewer, "gpuqueues"),
            within("gpuservices", served),
        )
        return Rights(jobs, nodes, queues, services)

    async def _may_list(self, viewer: Viewer, resource: str, namespace: str = "") -> bool:
        attributes = {"verb": "list", "group": GROUP, "resource": resource}
        if namespace:
            attributes["namespace"] = namespace
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {**viewer.subject, "resourceAttributes": attributes},
        }
        status = (await self.server.post(_ACCESS, body)).get("status") or {}
        return status.get("allowed") is True
