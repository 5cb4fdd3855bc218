"""What a request to the API server in `http_api` means: place, selection, discovery, and rules for
what fails or is slow."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpujob_api.manifest import GPUJOB, GPUNODE, GPUPROFILE, GPUQUEUE, GPUSERVICE
from gpujob_api.meta import GROUP, VERSION

Key = tuple[str, str, str]

_VERBS = ["get", "list", "watch", "patch", "create", "update", "delete"]
_KINDS: Mapping[str, tuple[tuple[str, str, bool], ...]] = {
    "v1": (("namespaces", "Namespace", False), ("events", "Event", True), ("pods", "Pod", True)),
    f"{GROUP}/{VERSION}": tuple(
        (one.plural, one.kind, one.namespaced)
        for one in (GPUJOB, GPUNODE, GPUQUEUE, GPUPROFILE, GPUSERVICE)
    ),
    "apiextensions.k8s.io/v1": (("customresourcedefinitions", "CustomResourceDefinition", False),),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a request goes. Empty texts are what it does not name."""

    plural: str
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> Key:
        return self.plural, self.namespace, self.name


@dataclass(slots=True)
class Rule:
    """What happens to matching requests, `times` times or until `heal`."""

    plural: str
    namespace: str
    methods: frozenset[str]
    times: int | None
    seconds: float = 0.0
    status: int | None = None
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    after_effect: bool = False

    def takes(self, method: str, place: Place) -> bool:
        same = self.plural == place.plural and self.namespace in ("", place.namespace)
        if not same or method not in self.methods or self.times == 0:
            return False
        self.times = None if self.times is None else self.times - 1
        return True


def place_of(path: str) -> Place | None:
    """None where the path names no resource."""
    parts = path.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    namespace = ""
    if len(rest) > 2 and rest[0] == "namespaces":
        namespace, rest = rest[1], rest[2:]
    if not rest:
        return None
    plural, name, subresource = [*rest, "", ""][:3]
    return Place(plural, namespace, name, subresource)


def discovery(path: str) -> dict[str, Any] | None:
    """The answer to a question for what kinds there are, as kopf asks it."""
    place = path.strip("/")
    if place == "api":
        return {"kind": "APIVersions", "versions": ["v1"]}
    if place == "apis":
        groups = [_group(version) for version in _KINDS if "/" in version]
        return {"kind": "APIGroupList", "groups": groups}
    version = place.removeprefix("apis/").removeprefix("api/")
    if version not in _KINDS or version == place:
        return None
    resources = [
        {
            "name": plural,
            "kind": kind,
            "singularName": kind.lower(),
            "namespaced": namespaced,
            "verbs": _VERBS,
        }
        for plural, kind, namespaced in _KINDS[version]
    ]
    return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}


def _group(group_version: str) -> dict[str, Any]:
    name, version = group_version.split("/")
    entry = {"groupVersion": group_version, "version": version}
    return {"name": name, "versions": [entry], "preferredVersion": entry}


def selection(place: Place, query: Mapping[str, str]) -> Callable[[dict[str, Any]], bool]:
    """Whether an object is in the namespace and fits the selectors; equality only."""
    labels = _pairs(query.get("labelSelector", ""))
    fields = _pairs(query.get("fieldSelector", ""))

    def wanted(one: dict[str, Any]) -> bool:
        metadata = one["metadata"]
        return (
            place.namespace in ("", metadata.get("namespace", ""))
            and labels.items() <= (metadata.get("labels") or {}).items()
            and all(_field(one, path) == value for path, value in fields.items())
        )

    return wanted


def _pairs(selector: str) -> dict[str, str]:
    found = (one.split("=", 1) for one in selector.replace("==", "=").split(",") if one)
    return {name: value for name, value in found}


def _field(value: Any, path: str) -> str:
    for name in path.split("."):
        value = value.get(name, "") if isinstance(value, dict) else ""
    return str(value)
