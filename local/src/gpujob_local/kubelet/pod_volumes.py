"""A pod's volumes as local directories, with a service account token that is renewed."""

import asyncio
import base64
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpujob_local.control_plane.api_client import ApiError
from gpujob_local.kubelet.node_api import NodeApi, patiently
from gpujob_local.kubelet.pod_environment import ContainerConfigError, Json, PodFacts

TOKEN_SECONDS_DEFAULT = 3600
# The kubelet renews a token when a fifth of its life is left.
REFRESH_SHARE = 0.8
REFRESH_SECONDS_MIN = 5.0


@dataclass(frozen=True, slots=True)
class _Token:
    """A token that must be renewed while the pod lives."""

    path: Path
    audience: str
    lifetime_seconds: int


@dataclass(slots=True)
class PodVolumes:
    """A pod's volumes. `directories` maps the name of every volume to its path; `prepare` makes
    them.

    `shared` is the only folder under which volumes of claims may be.
    """

    api: NodeApi
    facts: PodFacts
    folder: Path
    shared: Path
    directories: dict[str, Path] = field(default_factory=dict[str, Path])
    _tokens: list[_Token] = field(default_factory=list[_Token])

    @property
    def _namespace_path(self) -> str:
        return f"/api/v1/namespaces/{self.facts.pod['metadata']['namespace']}"

    async def prepare(self) -> None:
        """Makes the directories. Raises `ContainerConfigError` while something is missing; may be
        called again.
        """
        self._tokens.clear()
        for volume in self.facts.pod["spec"].get("volumes", []):
            self.directories[volume["name"]] = await self._make(volume)

    def mounts(self, container: Json) -> dict[str, str]:
        """Returns the local path of each mount path of one container."""
        result: dict[str, str] = {}
        for mount in container.get("volumeMounts", []):
            if mount.get("subPathExpr"):
                raise ContainerConfigError("subPathExpr is not supported on process nodes")
            local = self.directories[mount["name"]]
            if sub_path := mount.get("subPath"):
                local = _inside(local, sub_path)
                if not local.exists():
                    local.mkdir(parents=True)
            result[mount["mountPath"]] = str(local)
        return result

    async def keep_tokens_fresh(self) -> None:
        """Renews tokens endlessly. Returns at once if there are none."""
        if not self._tokens:
            return
        lifetime = min(token.lifetime_seconds for token in self._tokens)
        while True:
            await asyncio.sleep(max(REFRESH_SECONDS_MIN, lifetime * REFRESH_SHARE))
            for token in self._tokens:
                await patiently(lambda token=token: self._write_token(token))

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    async def _make(self, volume: Json) -> Path:
        folder = self.folder / volume["name"]
        if "persistentVolumeClaim" in volume:
            return await self._claim(volume["persistentVolumeClaim"]["claimName"])
        folder.mkdir(parents=True, exist_ok=True)
        if "projected" in volume:
            for source in volume["projected"].get("sources", []):
                await self._project(source, folder)
        elif "emptyDir" not in volume:
            await self._project(volume, folder)
        return folder

    async def _claim(self, name: str) -> Path:
        claim = await self._get(f"{self._namespace_path}/persistentvolumeclaims/{name}")
        if claim is None or claim.get("status", {}).get("phase") != "Bound":
            raise ContainerConfigError(f'persistentvolumeclaim "{name}" is not bound')
        volume = await self._get(f"/api/v1/persistentvolumes/{claim['spec']['volumeName']}")
        path = (volume or {}).get("spec", {}).get("hostPath", {}).get("path")
        if path is None or not _is_below(path, self.shared):
            message = f'persistentvolumeclaim "{name}": its volume is not one of this cluster\'s'
            raise ContainerConfigError(message)
        return _made(path)

    async def _project(self, source: Json, folder: Path) -> None:
        if "serviceAccountToken" in source:
            wanted = source["serviceAccountToken"]
            lifetime = int(wanted.get("expirationSeconds", TOKEN_SECONDS_DEFAULT))
            path = _inside(folder, wanted["path"])
            token = _Token(path, wanted.get("audience", ""), lifetime)
            await self._write_token(token)
            self._tokens.append(token)
        elif "downwardAPI" in source:
            for item in source["downwardAPI"].get("items", []):
                self._write_field(item, folder)
        elif "configMap" in source:
            await self._write_object("configmaps", source["configMap"], folder)
        elif "secret" in source:
            await self._write_object("secrets", source["secret"], folder)
        else:
            raise ContainerConfigError(f"projected source {', '.join(source)} is not supported")

    def _write_field(self, item: Json, folder: Path) -> None:
        if "fieldRef" not in item:
            raise ContainerConfigError("resourceFieldRef is not supported on process nodes")
        path = item["fieldRef"]["fieldPath"]
        mapping = self.facts.mapping(path)
        if mapping is not None:
            lines = [f'{key}="{value}"' for key, value in sorted(mapping.items())]
            text = "\n".join(lines)
        else:
            text = self.facts.field(path)
        write_atomically(_inside(folder, item["path"]), text.encode())

    async def _write_object(self, kind: str, reference: Json, folder: Path) -> None:
        name = reference.get("name") or reference.get("secretName")
        found = await self._get(f"{self._namespace_path}/{kind}/{name}")
        if found is None:
            if reference.get("optional"):
                return
            raise ContainerConfigError(f'{kind.removesuffix("s")} "{name}" not found')
        data = {key: value.encode() for key, value in text_data(found, kind == "secrets").items()}
        binary = found.get("binaryData") or {}
        data |= {key: base64.b64decode(value) for key, value in binary.items()}
        items: list[Json] = reference.get("items") or [{"key": key, "path": key} for key in data]
        for item in items:
            if item["key"] not in data:
                raise ContainerConfigError(f"{kind} {name} has no key {item['key']}")
            # Other users never read the files of a process node.
            mode = 0o700 if item.get("mode", 0) & 0o100 else 0o600
            write_atomically(_inside(folder, item["path"]), data[item["key"]], mode)

    async def _get(self, path: str) -> Json | None:
        """Returns the object, or None if it does not exist or this node may not see it yet."""
        try:
            return await self.api.get(path)
        except ApiError as error:
            if error.code in (403, 404):
                return None
            raise

    async def _write_token(self, token: _Token) -> None:
        metadata = self.facts.pod["metadata"]
        account = self.facts.pod["spec"].get("serviceAccountName", "default")
        spec: dict[str, Any] = {
            "audiences": [token.audience] if token.audience else [],
            "expirationSeconds": token.lifetime_seconds,
            "boundObjectRef": {
                "apiVersion": "v1",
                "kind": "Pod",
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
        }
        path = f"{self._namespace_path}/serviceaccounts/{account}/token"
        answer = await self.api.request("POST", path, {"spec": spec})
        write_atomically(token.path, answer["status"]["token"].encode())


def text_data(found: Json, encoded: bool) -> Mapping[str, str]:
    """Returns the data of a config map or secret as text."""
    data: dict[str, str] = found.get("data") or {}
    if not encoded:
        return data
    return {key: base64.b64decode(value).decode(errors="replace") for key, value in data.items()}


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Writes a file so that a reader sees either the old or the new content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{time.monotonic_ns()}")
    temporary.write_bytes(content)
    temporary.chmod(mode)
    os.replace(temporary, path)


def _inside(folder: Path, relative: str) -> Path:
    path = (folder / relative).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ContainerConfigError(f"path {relative!r} leaves its volume")
    return path


def _is_below(path: str, folder: Path) -> bool:
    return Path(path).resolve().is_relative_to(folder.resolve())


def _made(path: str) -> Path:
    Path(path).mkdir(parents=True, exist_ok=True)
    return Path(path)
