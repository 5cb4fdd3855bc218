"""Reads and changes GPUJobs, and reads what belongs to them, in the cluster that kubectl uses."""

import difflib
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime
from typing import Any, Protocol

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob
from gpujob_api.gpuservice import GPUService
from gpujob_api.manifest import GPUJOB, GPUSERVICE, from_manifest
from gpujob_api.meta import GROUP, LABEL_JOB_UID, VERSION
from kubectl_gpujob.errors import NotFoundError, UserError
from kubectl_gpujob.kubectl import (
    Kubectl,
    KubectlError,
    Stream,
    Target,
    is_name,
    refusal_of,
)

OURS = f"/apis/{GROUP}/{VERSION}"
PAGE_OBJECTS = 500
PAGES_MAX = 200
NAMESPACES_MAX = 5
Manifest = Mapping[str, Any]


class Cluster(Protocol):
    """A cluster, as the commands use it. All methods raise `UserError`."""

    @property
    def namespace(self) -> str: ...

    def job(self, name: str) -> GPUJob: ...

    def manifest(self, name: str) -> Manifest:
        """Returns the job's object as the API server stores it."""
        ...

    def service(self, name: str) -> GPUService | None:
        """Returns the GPUService of this name, or None."""
        ...

    def jobs(self, *, all_namespaces: bool = False, selector: str = "") -> Sequence[GPUJob]: ...

    def objects(self, what: str, path: str, **query: str) -> list[Manifest]:
        """Returns all objects of the list at `path`. `what` names them in errors."""
        ...

    def pods(self, job: GPUJob) -> list[Manifest]:
        """Returns the pods of all attempts of the job."""
        ...

    def events(self, job: GPUJob) -> list[Manifest]:
        """Returns the job's events as the API server keeps them, for an hour by default."""
        ...

    def log(self, namespace: str, pod: str, **query: str) -> AbstractContextManager[Stream]:
        """Opens the log of a pod, which may be followed."""
        ...

    def server_time(self) -> datetime | None:
        """Returns the API server's time, in whole seconds, or None if it does not tell."""
        ...

    def refusal(self, manifest: Manifest, namespace: str) -> str:
        """Returns why the API server would reject this GPUJob, or "" if it would not.

        It makes a dry run, as strict as kubectl's. Raises `NotCheckedError`.
        """
        ...

    def create(self, what: str, path: str, manifest: Manifest) -> Manifest: ...

    def patch(self, kind: str, name: str, patch: Manifest) -> Manifest: ...

    def delete(self, what: str, path: str) -> None: ...


def jobs_path(namespace: str, name: str | None = None) -> str:
    """Returns the path of the jobs of a namespace, or of one job.

    Raises `UserError` if the name can be no job's: an empty one would be the path of all jobs.
    """
    path = f"{OURS}/namespaces/{namespace}/{GPUJOB.plural}"
    if name is None:
        return path
    if not is_name(name):
        raise UserError(f"{name!r} is no name of a gpujob")
    return f"{path}/{name}"


class KubectlCluster:
    """A cluster behind an API server, through kubectl."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl

    @property
    def namespace(self) -> str:
        return self._kubectl.namespace

    def manifest(self, name: str) -> Manifest:
        what = f"gpujob {name} in namespace {self.namespace}"
        try:
            return self._kubectl.get(what, jobs_path(self.namespace, name))
        except NotFoundError as error:
            raise NotFoundError(f"{error}{self._near(name)}") from None

    def _near(self, name: str) -> str:
        """Returns where a job of this name is, or a name like it, as the end of an error, or ""."""
        alike = {"fieldSelector": f"metadata.name={name}"}
        try:
            found = self.objects("gpujobs", f"{OURS}/{GPUJOB.plural}", **alike)
        except UserError:
            # The user may not read other namespaces.
            found = []
        if found:
            elsewhere = sorted(one["metadata"]["namespace"] for one in found)[:NAMESPACES_MAX]
            return f"; there is one in namespace {', '.join(elsewhere)}"
        try:
            names = [job.metadata.name for job in self.jobs()]
        except UserError:
            return ""
        near = difflib.get_close_matches(name, names, 1)
        near = near or [one for one in names if one.startswith(f"{name}-")][:1]
        return f"; did you mean {near[0]}?" if near else ""

    def job(self, name: str) -> GPUJob:
        try:
            return from_manifest(GPUJob, self.manifest(name))
        except FieldError as error:
            raise UserError(f"the job cannot be read: {error}") from None

    def service(self, name: str) -> GPUService | None:
        if not is_name(name):
            return None
        what = f"gpuservice {name} in namespace {self.namespace}"
        path = f"{OURS}/namespaces/{self.namespace}/{GPUSERVICE.plural}/{name}"
        try:
            return from_manifest(GPUService, self._kubectl.get(what, path))
        except NotFoundError:
            return None
        except FieldError as error:
            raise UserError(f"the service cannot be read: {error}") from None

    def jobs(self, *, all_namespaces: bool = False, selector: str = "") -> Sequence[GPUJob]:
        what = "gpujobs" if all_namespaces else f"gpujobs in namespace {self.namespace}"
        path = f"{OURS}/{GPUJOB.plural}" if all_namespaces else jobs_path(self.namespace)
        query = {"labelSelector": selector} if selector else {}
        found = map(_readable, self.objects(what, path, **query))
        return [job for job in found if job is not None]

    def objects(self, what: str, path: str, **query: str) -> list[Manifest]:
        items: list[Manifest] = []
        token = ""
        for _ in range(PAGES_MAX):
            paging = {"limit": str(PAGE_OBJECTS), **query}
            page = self._kubectl.get(what, path, **paging, **({"continue": token} if token else {}))
            items += page.get("items") or []
            token = (page.get("metadata") or {}).get("continue") or ""
            if not token:
                return items
        raise UserError(f"there are more than {len(items)} {what}")

    def pods(self, job: GPUJob) -> list[Manifest]:
        namespace = job.metadata.namespace
        what, path = f"pods in namespace {namespace}", f"/api/v1/namespaces/{namespace}/pods"
        return self.objects(what, path, labelSelector=f"{LABEL_JOB_UID}={job.metadata.uid}")

    def events(self, job: GPUJob) -> list[Manifest]:
        namespace = job.metadata.namespace
        what, path = f"events in namespace {namespace}", f"/api/v1/namespaces/{namespace}/events"
        return self.objects(what, path, fieldSelector=f"involvedObject.uid={job.metadata.uid}")

    @contextmanager
    def log(self, namespace: str, pod: str, **query: str) -> Generator[Stream]:
        with self._kubectl.stream(f"/api/v1/namespaces/{namespace}/pods/{pod}/log", **query) as it:
            yield it

    def server_time(self) -> datetime | None:
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "SelfSubjectReview"}
        path = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
        try:
            answer = self._kubectl.create(path, review)
            return datetime.fromisoformat(answer["metadata"]["creationTimestamp"])
        except (KubectlError, KeyError, TypeError, ValueError):
            return None

    def refusal(self, manifest: Manifest, namespace: str) -> str:
        try:
            self._kubectl.create(jobs_path(namespace), manifest, dryRun="All")
        except KubectlError as failure:
            return refusal_of(failure, namespace)
        return ""

    def create(self, what: str, path: str, manifest: Manifest) -> Manifest:
        try:
            return self._kubectl.create(path, manifest)
        except KubectlError as failure:
            if failure.reason == "AlreadyExists":
                raise UserError(f"{what} exists already: choose another name") from None
            raise UserError(f"{what} was not created: {failure.message}") from None

    def patch(self, kind: str, name: str, patch: Manifest) -> Manifest:
        what = f"{kind} {name} in namespace {self.namespace}"
        return self._kubectl.patch(what, kind, self.namespace, name, patch)

    def delete(self, what: str, path: str) -> None:
        self._kubectl.delete(what, path)


def connect(target: Target) -> KubectlCluster:
    return KubectlCluster(Kubectl(target))


def _readable(item: object) -> GPUJob | None:
    """Returns the job, or None. A job that another schema accepted must not hide the others in a
    list.
    """
    try:
        return from_manifest(GPUJob, item)
    except FieldError:
        return None
