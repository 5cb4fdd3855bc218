"""The environment, command and paths of a container's process. Pure; part of a process node.

It follows the kubelet's rules for $(NAME), env, envFrom and the downward API. There is no container
file system, so a path below a volume's mountPath is rewritten to the local directory of that
volume.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Json = dict[str, Any]

PROBE_ACTIONS = ("httpGet", "tcpSocket")
_REFERENCE = re.compile(r"\$(?:\$|\(([^)]*)\))")
_SUBSCRIPT = re.compile(r"^metadata\.(labels|annotations)\['([^']+)'\]$")
# Characters allowed around a path, so that a longer name or a URL's tail does not match.
_BEFORE = r"(?<![\w.\-/])"
_AFTER = r"(?=$|[/:;,\s\"'\]})])"


class ContainerConfigError(Exception):
    """The container cannot be started as it is written. The message names the field.

    `reason` is the kubelet's reason for the waiting container.
    """

    def __init__(self, message: str, reason: str = "CreateContainerConfigError") -> None:
        super().__init__(message)
        self.reason = reason


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replaces $(NAME) by its value. Unknown names stay, and $$ becomes a plain $."""

    def replacement(match: re.Match[str]) -> str:
        name = match.group(1)
        return "$" if name is None else values.get(name, match.group(0))

    return _REFERENCE.sub(replacement, text)


@dataclass(frozen=True, slots=True)
class PathMap:
    """Mount paths, and the local directories (or files) that stand for them."""

    paths: Mapping[str, str]

    def rewrite(self, text: str) -> str:
        """Returns the text with every mount path in it replaced. The longest mount path wins."""
        mounts = {mount.rstrip("/"): local for mount, local in self.paths.items()}
        if not mounts:
            return text
        longest_first = sorted(mounts, key=len, reverse=True)
        pattern = _BEFORE + "(" + "|".join(map(re.escape, longest_first)) + ")" + _AFTER
        return re.sub(pattern, lambda match: mounts[match.group(1)], text)


@dataclass(frozen=True, slots=True)
class PodFacts:
    """The node's facts about a pod beyond its object: addresses that go into the downward API."""

    pod: Json
    pod_ip: str
    host_ip: str

    def field(self, path: str) -> str:
        """Returns a downward API field. Raises `ContainerConfigError` if it does not exist."""
        metadata, spec = self.pod["metadata"], self.pod["spec"]
        match = _SUBSCRIPT.match(path)
        if match is not None:
            return metadata.get(match.group(1), {}).get(match.group(2), "")
        fields = {
            "metadata.name": metadata["name"],
            "metadata.namespace": metadata["namespace"],
            "metadata.uid": metadata["uid"],
            "spec.nodeName": spec.get("nodeName", ""),
            "spec.serviceAccountName": spec.get("serviceAccountName", "default"),
            "status.podIP": self.pod_ip,
            "status.podIPs": self.pod_ip,
            "status.hostIP": self.host_ip,
            "status.hostIPs": self.host_ip,
        }
        if path not in fields:
            raise ContainerConfigError(f"fieldPath {path!r} is not supported on process nodes")
        return fields[path]

    def mapping(self, path: str) -> Mapping[str, str] | None:
        """Returns all labels or annotations, for files, or None if the path names
        something else.
        """
        if path in ("metadata.labels", "metadata.annotations"):
            return self.pod["metadata"].get(path.partition(".")[2], {})
        return None


# (ConfigMap or Secret, its name) -> its data, or None if it does not exist
Objects = Mapping[tuple[str, str], Mapping[str, str] | None]


def referenced_objects(container: Json) -> set[tuple[str, str]]:
    """Returns the config maps and secrets that a container's environment reads."""
    found: set[tuple[str, str]] = set()
    for source in container.get("envFrom", []):
        for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
            if key in source:
                found.add((kind, source[key]["name"]))
    for variable in container.get("env", []):
        source = variable.get("valueFrom", {})
        for key, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
            if key in source:
                found.add((kind, source[key]["name"]))
    return found


def build_environment(container: Json, facts: PodFacts, objects: Objects) -> dict[str, str]:
    """Returns the container's own variables. Raises `ContainerConfigError` naming what is
    missing.
    """
    values: dict[str, str] = {}
    for source in container.get("envFrom", []):
        values |= _from_object(source, objects)
    for variable in container.get("env", []):
        if "valueFrom" in variable:
            value = _value_from(variable, facts, objects)
        else:
            value = expand(variable.get("value", ""), values)
        if value is not None:
            values[variable["name"]] = value
    return values


def _from_object(source: Json, objects: Objects) -> dict[str, str]:
    kind, key = (
        ("ConfigMap", "configMapRef") if "configMapRef" in source else ("Secret", "secretRef")
    )
    reference = source[key]
    data = objects.get((kind, reference["name"]))
    if data is None:
        if reference.get("optional"):
            return {}
        raise ContainerConfigError(f'{kind.lower()} "{reference["name"]}" not found')
    prefix = source.get("prefix", "")
    return {prefix + name: value for name, value in data.items()}


def _value_from(variable: Json, facts: PodFacts, objects: Objects) -> str | None:
    source = variable["valueFrom"]
    if "fieldRef" in source:
        return facts.field(source["fieldRef"]["fieldPath"])
    for key, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if key in source:
            return _key_of_object(source[key], kind, objects)
    known = ", ".join(source)
    raise ContainerConfigError(f"env {variable['name']}: {known} is not supported on process nodes")


def _key_of_object(reference: Json, kind: str, objects: Objects) -> str | None:
    data = objects.get((kind, reference["name"]))
    if data is not None and reference["key"] in data:
        return data[reference["key"]]
    if reference.get("optional"):
        return None
    if data is None:
        raise ContainerConfigError(f'{kind.lower()} "{reference["name"]}" not found')
    message = f"couldn't find key {reference['key']} in {kind} {reference['name']}"
    raise ContainerConfigError(message)


def build_command(container: Json, values: Mapping[str, str], paths: PathMap) -> list[str]:
    """Returns command and arguments, expanded and rewritten. Raises if there is no command."""
    if not container.get("command"):
        raise ContainerConfigError(
            "no command specified: process nodes know no image's default, so write one",
            reason="CreateContainerError",
        )
    words: Sequence[str] = [*container["command"], *container.get("args", [])]
    return [paths.rewrite(expand(word, values)) for word in words]


def unsupported_feature(pod: Json) -> str | None:
    """Returns the feature of this pod that a process node does not support, or None."""
    spec = pod["spec"]
    for kind in ("initContainers", "containers"):
        for index, container in enumerate(spec.get(kind, [])):
            where = f"spec.{kind}[{index}]"
            for name in ("livenessProbe", "startupProbe", "lifecycle"):
                if container.get(name):
                    return f"{where}.{name} is not supported on process nodes"
            if (part := _unsupported_probe(container)) is not None:
                return f"{where}.{part} is not supported on process nodes"
            if container.get("restartPolicy"):
                return f"{where}.restartPolicy (sidecar) is not supported on process nodes"
    for index, volume in enumerate(spec.get("volumes", [])):
        kinds = [key for key in volume if key != "name"]
        if any(kind not in SUPPORTED_VOLUMES for kind in kinds):
            return f"spec.volumes[{index}].{kinds[0]} is not supported on process nodes"
    return None


def _unsupported_probe(container: Json) -> str | None:
    """Returns the part of the readiness probe that process nodes do not support, or None."""
    asked = container.get("readinessProbe") or {}
    if not asked or any(name in asked for name in PROBE_ACTIONS):
        return None
    known = ("exec", "grpc")
    return next((f"readinessProbe.{name}" for name in known if name in asked), "readinessProbe")


SUPPORTED_VOLUMES = frozenset(
    {"emptyDir", "persistentVolumeClaim", "projected", "configMap", "secret", "downwardAPI"}
)
