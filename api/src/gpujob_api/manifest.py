"""Our kinds to and from the objects of the Kubernetes API (`metadata/spec/status`).

This is the edge between the API server and the nouns. `observe` reads watch events through it, and
the command line, the simulator and the replay read files. A `FieldError` names the field by its
path in the object, such as `spec.gpu.memory` or `metadata.name`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from gpujob_api.bounds import shown
from gpujob_api.codec import FieldError, decode, encode
from gpujob_api.gpujob import GPUJob, GPUJobSpec, GPUJobStatus
from gpujob_api.gpunode import GPUNode, GPUNodeSpec, GPUNodeStatus
from gpujob_api.gpuprofile import GPUProfile, GPUProfileSpec, GPUProfileStatus
from gpujob_api.gpuqueue import GPUQueue, GPUQueueSpec, GPUQueueStatus
from gpujob_api.gpuservice import GPUService, GPUServiceSpec, GPUServiceStatus
from gpujob_api.meta import API_VERSION, GROUP, Metadata
from gpujob_api.short_form import expanded

Noun = GPUJob | GPUNode | GPUQueue | GPUProfile | GPUService
NounT = TypeVar("NounT", GPUJob, GPUNode, GPUQueue, GPUProfile, GPUService)


@dataclass(frozen=True, slots=True)
class Resource:
    """The API server's names of a kind, such as its plural in URLs, and whether it is
    namespaced.
    """

    kind: str
    plural: str
    short_name: str
    namespaced: bool

    @property
    def crd_name(self) -> str:
        return f"{self.plural}.{GROUP}"


GPUJOB = Resource("GPUJob", "gpujobs", "gj", namespaced=True)
GPUNODE = Resource("GPUNode", "gpunodes", "gn", namespaced=False)
GPUQUEUE = Resource("GPUQueue", "gpuqueues", "gq", namespaced=False)
GPUPROFILE = Resource("GPUProfile", "gpuprofiles", "gp", namespaced=True)
GPUSERVICE = Resource("GPUService", "gpuservices", "gs", namespaced=True)

RESOURCES: Mapping[type, Resource] = {
    GPUJob: GPUJOB,
    GPUNode: GPUNODE,
    GPUQueue: GPUQUEUE,
    GPUProfile: GPUPROFILE,
    GPUService: GPUSERVICE,
}
_PARTS: Mapping[type, tuple[type, type]] = {
    GPUJob: (GPUJobSpec, GPUJobStatus),
    GPUNode: (GPUNodeSpec, GPUNodeStatus),
    GPUQueue: (GPUQueueSpec, GPUQueueStatus),
    GPUProfile: (GPUProfileSpec, GPUProfileStatus),
    GPUService: (GPUServiceSpec, GPUServiceStatus),
}


def read_spec(data: object) -> GPUJobSpec:
    """Reads a GPUJob's `spec`, in the short or the long form. Raises `FieldError` with a path below
    `spec`.
    """
    return decode(GPUJobSpec, expanded(data), "spec")


def gpujob_from_manifest(
    data: object, spec_reader: Callable[[object], GPUJobSpec] = read_spec
) -> GPUJob:
    """Reads a GPUJob object. Raises `FieldError`."""
    return from_manifest(GPUJob, data, spec_reader)


def gpunode_from_manifest(data: object) -> GPUNode:
    """Reads a GPUNode object. Raises `FieldError`."""
    return from_manifest(GPUNode, data)


def gpuqueue_from_manifest(data: object) -> GPUQueue:
    """Reads a GPUQueue object. Raises `FieldError`."""
    return from_manifest(GPUQueue, data)


def gpuprofile_from_manifest(data: object) -> GPUProfile:
    """Reads a GPUProfile object. Raises `FieldError`."""
    return from_manifest(GPUProfile, data)


def gpuservice_from_manifest(data: object) -> GPUService:
    """Reads a GPUService object. Raises `FieldError`."""
    return from_manifest(GPUService, data)


def from_manifest(
    kind: type[NounT], data: object, spec_reader: Callable[[object], Any] | None = None
) -> NounT:
    """Reads an object of one of our kinds. A missing `kind` is accepted, because lists leave it
    out.
    """
    resource = RESOURCES[kind]
    if not isinstance(data, Mapping):
        raise FieldError(resource.kind, "must be an object")
    manifest = cast("Mapping[str, object]", data)
    _expect(manifest, "apiVersion", API_VERSION)
    _expect(manifest, "kind", resource.kind)
    spec_kind, status_kind = cast("tuple[type[Any], type[Any]]", _PARTS[kind])
    spec = manifest.get("spec") or {}
    if kind is GPUJob:
        spec_reader = spec_reader or read_spec
    return kind(
        metadata=metadata_from_manifest(manifest.get("metadata") or {}),
        spec=cast("Any", spec_reader(spec) if spec_reader else decode(spec_kind, spec, "spec")),
        status=decode(status_kind, manifest.get("status") or {}, "status"),
    )


def to_manifest(noun: Noun) -> dict[str, Any]:
    """Writes the whole object in the form of `kubectl get -o json`."""
    return {
        "apiVersion": API_VERSION,
        "kind": RESOURCES[type(noun)].kind,
        "metadata": metadata_to_manifest(noun.metadata),
        "spec": encode(noun.spec),
        "status": encode(noun.status),
    }


def metadata_from_manifest(data: object) -> Metadata:
    """Reads an object's `metadata`. Raises `FieldError` with a path below `metadata`."""
    return decode(Metadata, data, "metadata")


def metadata_to_manifest(metadata: Metadata) -> dict[str, Any]:
    """Writes `metadata`. Empty fields are left out, because the API server fills them."""
    return {name: value for name, value in encode(metadata).items() if value}


def _expect(manifest: Mapping[str, object], name: str, expected: str) -> None:
    value = manifest.get(name)
    if value is not None and value != expected:
        raise FieldError(name, f"must be {expected}; got {shown(value)}")
