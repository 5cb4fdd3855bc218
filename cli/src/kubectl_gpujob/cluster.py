"""Reads GPUJobs from the API server that kubectl would use, by the same kubeconfig and context.

The Kubernetes client takes a second to import, so it is imported on demand.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import yaml

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import GPUJOB, from_manifest
from gpujob_api.meta import GROUP, VERSION
from kubectl_gpujob.errors import (
    PAGE_OBJECTS,
    PAGES_MAX,
    REQUEST_SECONDS_MAX,
    NotCheckedError,
    UserError,
    answered,
    refusal_of,
)
from kubectl_gpujob.listing import Listing, read_all


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster and namespace, by kubectl's flags of the same names."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None


class Cluster(Protocol):
    """What the commands need from a cluster. All methods raise `UserError`."""

    @property
    def namespace(self) -> str: ...

    def job(self, name: str) -> GPUJob: ...

    def jobs(self, *, all_namespaces: bool) -> Sequence[GPUJob]: ...

    def listing(self) -> Listing: ...

    def refusal(self, manifest: Mapping[str, Any], namespace: str) -> str:
        """Returns why the API server would reject this GPUJob, or "" if it would not.

        It makes a dry run, as strict as kubectl's. Raises `NotCheckedError`.
        """
        ...


class KubernetesCluster:
    """A cluster behind an API server."""

    def __init__(self, api: Any, namespace: str) -> None:
        self._api = api
        self._namespace = namespace

    @property
    def namespace(self) -> str:
        return self._namespace

    def job(self, name: str) -> GPUJob:
        where = f"gpujob {name} in namespace {self._namespace}"
        found = self._call(
            where, self._api.get_namespaced_custom_object, namespace=self._namespace, name=name
        )
        return _read(found)

    def jobs(self, *, all_namespaces: bool) -> Sequence[GPUJob]:
        where = "gpujobs" if all_namespaces else f"gpujobs in namespace {self._namespace}"
        items: list[Any] = []
        token = ""
        for _ in range(PAGES_MAX):
            page = self._page(where, all_namespaces, token)
            items += page.get("items", [])
            token = page.get("metadata", {}).get("continue", "")
            if not token:
                break
        return [job for item in items if (job := _readable(item)) is not None]

    def listing(self) -> Listing:
        """Returns all objects that decisions read."""
        return read_all(self._api.api_client)

    def refusal(self, manifest: Mapping[str, Any], namespace: str) -> str:
        from kubernetes.client.exceptions import ApiException
        from urllib3.exceptions import HTTPError

        try:
            self._api.create_namespaced_custom_object(
                group=GROUP,
                version=VERSION,
                namespace=namespace,
                plural=GPUJOB.plural,
                body=manifest,
                dry_run="All",
                field_validation="Strict",
                _request_timeout=REQUEST_SECONDS_MAX,
            )
        except ApiException as error:
            return refusal_of(cast("int", error.status), str(error.body or ""), namespace)
        except HTTPError as error:
            raise NotCheckedError(f"the API server cannot be reached: {error}") from None
        return ""

    def _page(self, where: str, all_namespaces: bool, token: str) -> Mapping[str, Any]:
        paging = {"limit": PAGE_OBJECTS, **({"_continue": token} if token else {})}
        if all_namespaces:
            return self._call(where, self._api.list_cluster_custom_object, **paging)
        return self._call(
            where, self._api.list_namespaced_custom_object, namespace=self._namespace, **paging
        )

    def _call(self, where: str, method: Any, **arguments: Any) -> Mapping[str, Any]:
        return answered(
            where,
            method,
            group=GROUP,
            version=VERSION,
            plural=GPUJOB.plural,
            _request_timeout=REQUEST_SECONDS_MAX,
            **arguments,
        )


def connect(target: Target) -> KubernetesCluster:
    """Opens the cluster of the kubeconfig. Raises `UserError`."""
    from kubernetes import client, config
    from kubernetes.config.kube_config import KUBE_CONFIG_DEFAULT_LOCATION

    path = str(target.kubeconfig) if target.kubeconfig is not None else None
    where = f"no usable kubeconfig at {path or KUBE_CONFIG_DEFAULT_LOCATION}"
    try:
        contexts, active = config.list_kube_config_contexts(path)
        chosen = _choose(contexts, active, target.context)
        api = config.new_client_from_config(path, context=chosen["name"])
    except (config.ConfigException, OSError) as error:
        raise UserError(f"{where}: {error}") from None
    except yaml.YAMLError as error:
        raise UserError(f"{where}: is not YAML: {' '.join(str(error).split())}") from None
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        # The client's loader does not check the file's structure.
        raise UserError(f"{where}: is not a kubeconfig ({type(error).__name__}: {error})") from None
    # A person is waiting, so there is one attempt, and the reason at once.
    api.rest_client.pool_manager.connection_pool_kw["retries"] = 0
    namespace = target.namespace or chosen.get("context", {}).get("namespace") or "default"
    return KubernetesCluster(client.CustomObjectsApi(api), namespace)


def _choose(contexts: Any, active: Any, name: str | None) -> Mapping[str, Any]:
    if name is None:
        return active
    for context in contexts:
        if context["name"] == name:
            return context
    known = ", ".join(context["name"] for context in contexts)
    raise UserError(f"no context {name} in the kubeconfig; existing contexts: {known}")


def _read(item: object) -> GPUJob:
    try:
        return from_manifest(GPUJob, item)
    except FieldError as error:
        raise UserError(f"the job cannot be read: {error}") from None


def _readable(item: object) -> GPUJob | None:
    """Returns the job, or None. A job that another schema accepted must not hide the others in a
    list.
    """
    try:
        return from_manifest(GPUJob, item)
    except FieldError:
        return None
