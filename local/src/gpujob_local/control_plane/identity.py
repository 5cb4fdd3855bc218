"""The address and credentials for an API server. Making credentials, which takes longer, is
elsewhere.
"""

import os
from dataclasses import dataclass
from pathlib import Path

import yaml

# The API server presents this name to the nodes, which serve logs to no other client.
KUBELET_CLIENT = "kube-apiserver-kubelet-client"


@dataclass(frozen=True, slots=True)
class Identity:
    """The address of an API server and the credentials: a token, or a client certificate and its
    key.
    """

    server: str
    authority: Path
    token: str | None = None
    certificate: Path | None = None
    key: Path | None = None

    def write_kubeconfig(self, path: Path) -> Path:
        """Writes a kubeconfig. It references files, so that clients need not unpack them into
        temporary ones.
        """
        user: dict[str, str] = {}
        if self.token is not None:
            user["token"] = self.token
        if self.certificate is not None and self.key is not None:
            user |= {"client-certificate": str(self.certificate), "client-key": str(self.key)}
        cluster = {"server": self.server, "certificate-authority": str(self.authority)}
        context = {"cluster": "local", "user": "local", "namespace": "default"}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "local", "cluster": cluster}],
            "users": [{"name": "local", "user": user}],
            "contexts": [{"name": "local", "context": context}],
            "current-context": "local",
        }
        write_private(path, yaml.safe_dump(config).encode())
        return path

    @classmethod
    def read_kubeconfig(cls, path: Path) -> "Identity":
        """Reads what `write_kubeconfig` writes. Other forms of kubeconfig are rejected."""
        config = yaml.safe_load(path.read_text())
        try:
            cluster = config["clusters"][0]["cluster"]
            user = config["users"][0]["user"]
            certificate, key = user.get("client-certificate"), user.get("client-key")
            return cls(
                server=cluster["server"],
                authority=Path(cluster["certificate-authority"]),
                token=user.get("token"),
                certificate=Path(certificate) if certificate else None,
                key=Path(key) if key else None,
            )
        except (KeyError, IndexError, TypeError) as error:
            raise ValueError(f"{path} is not a kubeconfig of a local cluster: {error!r}") from None


def write_private(path: Path, content: bytes) -> None:
    """Writes a file that only its owner may read."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
