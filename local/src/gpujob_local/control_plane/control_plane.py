"""A real etcd, kube-apiserver, kube-scheduler and kube-controller-manager on loopback.

All their state is in one directory, and every identity is new. It is the base of a local cluster
(`cluster.py`), and of tests that only need an API server.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from gpujob_local.control_plane.api_client import ApiClient, ApiError
from gpujob_local.control_plane.credentials import Authority, new_token, write_service_account_keys
from gpujob_local.control_plane.identity import KUBELET_CLIENT, Identity, write_private
from gpujob_local.control_plane.ports import free_port
from gpujob_local.processes.processes import MARKER, Child, start_child, stop_child

READY_LIMIT_SECONDS = 60.0
POLL_SECONDS = 0.05
START_ATTEMPTS = 3
QUERIES_PER_SECOND = "1000"
# A file in the working directory. etcd requires a port in its name.
ETCD_URL = "unix://etcd:0"

# Name of the user, groups.
_TOKEN_USERS = {
    "admin": ("gpujob-local-admin", "system:masters"),
    "scheduler": ("system:kube-scheduler", ""),
    # The built-in role suits only controllers with one account each, which costs more requests.
    "controller-manager": ("system:kube-controller-manager", "system:masters"),
}


class ClusterError(Exception):
    """A part of the cluster did not start, or it stopped. The message has the end of its log."""


@dataclass(frozen=True, slots=True)
class ControlPlaneOptions:
    """A node without a heartbeat for `node_grace_seconds` becomes NotReady.

    `audit` writes every request's metadata to audit.log in the directory. With `durable` etcd waits
    for the disk, as in a real cluster. Without it, writes are faster and nothing outlives a crash.
    """

    node_grace_seconds: int = 12
    audit: bool = False
    controllers: bool = True
    durable: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """Where a control plane runs: on this machine's loopback, or in its own network.

    In its own network, every component's command begins with `enter`. Nodes and pods reach the API
    server at `addresses` (nodes at the first one) and `inner_port`. Another program forwards `port`
    on this machine's loopback to it.
    """

    enter: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    port: int = 0
    inner_port: int = 0


LOOPBACK = Place()


class ControlPlane:
    """Starts and stops. `stop_component` and `start_component` break it on purpose."""

    def __init__(
        self,
        directory: Path,
        binaries: dict[str, Path],
        marker_value: str,
        options: ControlPlaneOptions | None = None,
        place: Place = LOOPBACK,
    ) -> None:
        self.directory = directory
        self.marker_value = marker_value
        self.options = options or ControlPlaneOptions()
        self.children: dict[str, Child] = {}
        self.kubeconfig = directory / "admin.kubeconfig"
        self.audit_log = directory / "audit.log"
        self._binaries = binaries
        self._environment = {MARKER: marker_value, "PATH": os.defpath}
        self._tokens = {name: new_token() for name in _TOKEN_USERS}
        self._place = place
        self._port = place.port

    @property
    def server(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    @property
    def _inner_port(self) -> int:
        return self._place.inner_port or self._port

    def start(self, prepare: Callable[[ApiClient], object] | None = None) -> None:
        """Starts everything, and returns once the API server is ready. Raises `ClusterError`.

        `prepare` creates objects that must exist before the controllers. The garbage collector
        would take up to 30 s to discover a kind that is defined later.
        """
        self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._authority = Authority(self.directory)
        self.kubelet_client = self._authority.issue("kubelet-client", KUBELET_CLIENT)
        self._server_certificate = self._authority.issue(
            "apiserver", "kube-apiserver", addresses=self._place.addresses
        )
        self._account_keys = write_service_account_keys(self.directory)
        self._write_tokens()
        self.start_component("etcd")
        self._start_api_server()
        if prepare is not None:
            prepare(self.client())
        if self.options.controllers:
            self.start_component("kube-controller-manager")
            self.start_component("kube-scheduler")
            self.wait_until(self._default_account_exists, "the default service account")

    def stop(self) -> None:
        """Ends everything at once. The state is discarded, so there is nothing to save."""
        for name in reversed(list(self.children)):
            stop_child(self.children.pop(name), grace_seconds=0)

    def client(self) -> ApiClient:
        return ApiClient(self.identity("admin"))

    def identity(self, token_name: str) -> Identity:
        return Identity(self.server, self._authority.path, token=self._tokens[token_name])

    def token_identity(self, token: str) -> Identity:
        """Returns an identity with a token of this cluster, such as a service account's."""
        return Identity(self.server, self._authority.path, token=token)

    def certificate_identity(self, file_name: str, user: str, group: str = "") -> Identity:
        """Returns an identity with a new client certificate. RBAC and the node rules see its user
        and groups.
        """
        certificate, key = self._authority.issue(file_name, user, group)
        address = self._place.addresses[0] if self._place.addresses else "127.0.0.1"
        server = f"https://{address}:{self._inner_port}"
        return Identity(server, self._authority.path, certificate=certificate, key=key)

    @property
    def authority_path(self) -> Path:
        return self._authority.path

    def issue(
        self, file_name: str, common_name: str, addresses: tuple[str, ...] = ()
    ) -> tuple[Path, Path]:
        return self._authority.issue(file_name, common_name, addresses=addresses)

    def start_component(self, name: str) -> Child:
        """Starts etcd, kube-apiserver, ..., possibly again, with the same state and port."""
        command = [*self._place.enter, str(self._binaries[name]), *self._arguments(name)]
        log = self.directory / f"{name}.log"
        child = start_child(name, command, self._environment, log, folder=self.directory)
        self.children[name] = child
        return child

    def stop_component(self, name: str) -> None:
        """Kills a component with SIGKILL, as a fault and not a graceful stop."""
        stop_child(self.children.pop(name), grace_seconds=0)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Polls until the condition holds. Raises `ClusterError` after a minute, or once a
        component has ended.
        """
        deadline = time.monotonic() + READY_LIMIT_SECONDS
        while not condition():
            for child in self.children.values():
                if not child.alive():
                    raise ClusterError(f"{child.name} ended while starting:\n{child.log_tail()}")
            if time.monotonic() > deadline:
                raise ClusterError(f"{what}: not there after {READY_LIMIT_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)

    def ready(self) -> bool:
        try:
            return self.client().request_bytes("GET", "/readyz") == b"ok"
        except (OSError, ApiError):
            return False

    def _start_api_server(self) -> None:
        for attempt in range(1, START_ATTEMPTS + 1):
            self._port = self._place.port or free_port()
            self._write_kubeconfigs()
            child = self.start_component("kube-apiserver")
            try:
                self.wait_until(self.ready, "kube-apiserver")
                return
            except ClusterError:
                taken = "address already in use" in child.log_tail()
                if not taken or attempt == START_ATTEMPTS:
                    raise

    def _default_account_exists(self) -> bool:
        try:
            self.client().get("/api/v1/namespaces/default/serviceaccounts/default")
        except ApiError:
            return False
        return True

    def _write_tokens(self) -> None:
        lines = [
            f'{self._tokens[name]},{user},{user},"{groups}"\n'
            for name, (user, groups) in _TOKEN_USERS.items()
        ]
        write_private(self.directory / "tokens.csv", "".join(lines).encode())

    def _write_kubeconfigs(self) -> None:
        for name in _TOKEN_USERS:
            # All kubeconfigs except the user's are for components, which run inside.
            port = self._port if name == "admin" else self._inner_port
            identity = replace(self.identity(name), server=f"https://127.0.0.1:{port}")
            identity.write_kubeconfig(self.directory / f"{name}.kubeconfig")

    def _arguments(self, name: str) -> list[str]:
        builders = {
            "etcd": self._etcd_arguments,
            "kube-apiserver": self._api_server_arguments,
            "kube-scheduler": self._scheduler_arguments,
            "kube-controller-manager": self._controller_manager_arguments,
        }
        return [f"--{key}={value}" for key, value in builders[name]().items()]

    def _etcd_arguments(self) -> dict[str, str]:
        # Sockets in the private working directory need no port, and no other user can connect.
        peer = "unix://etcd-peer:0"
        return {
            "data-dir": str(self.directory / "etcd"),
            "listen-client-urls": ETCD_URL,
            "advertise-client-urls": ETCD_URL,
            "listen-peer-urls": peer,
            "initial-advertise-peer-urls": peer,
            "initial-cluster": f"default={peer}",
            "unsafe-no-fsync": "false" if self.options.durable else "true",
            "log-level": "error",
        }

    def _api_server_arguments(self) -> dict[str, str]:
        private_key, public_key = self._account_keys
        certificate, key = self._server_certificate
        client_certificate, client_key = self.kubelet_client
        return {
            "etcd-servers": ETCD_URL,
            **self._address_arguments(),
            "secure-port": str(self._inner_port),
            "tls-cert-file": str(certificate),
            "tls-private-key-file": str(key),
            "cert-dir": str(self.directory),
            "client-ca-file": str(self._authority.path),
            "token-auth-file": str(self.directory / "tokens.csv"),
            "authorization-mode": "Node,RBAC",
            "enable-admission-plugins": "NodeRestriction",
            "service-account-issuer": "https://kubernetes.default.svc",
            "service-account-key-file": str(public_key),
            "service-account-signing-key-file": str(private_key),
            "service-cluster-ip-range": "10.96.0.0/16",
            "kubelet-certificate-authority": str(self._authority.path),
            "kubelet-client-certificate": str(client_certificate),
            "kubelet-client-key": str(client_key),
            "kubelet-preferred-address-types": "InternalIP",
            "shutdown-delay-duration": "0s",
            **(self._audit_arguments() if self.options.audit else {}),
        }

    def _address_arguments(self) -> dict[str, str]:
        if self._place.addresses:
            return {"bind-address": "0.0.0.0", "advertise-address": self._place.addresses[0]}  # noqa: S104 - in its own network
        local = {"bind-address": "127.0.0.1", "advertise-address": "127.0.0.1"}
        return local | {"endpoint-reconciler-type": "none"}

    def _audit_arguments(self) -> dict[str, str]:
        policy = self.directory / "audit-policy.yaml"
        rules = {"omitStages": ["RequestReceived"], "rules": [{"level": "Metadata"}]}
        head = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy"}
        policy.write_text(yaml.safe_dump(head | rules))
        return {"audit-policy-file": str(policy), "audit-log-path": str(self.audit_log)}

    def _scheduler_arguments(self) -> dict[str, str]:
        return {
            "kubeconfig": str(self.directory / "scheduler.kubeconfig"),
            "leader-elect": "false",
            "secure-port": "0",
            "kube-api-qps": QUERIES_PER_SECOND,
            "kube-api-burst": QUERIES_PER_SECOND,
        }

    def _controller_manager_arguments(self) -> dict[str, str]:
        grace = self.options.node_grace_seconds
        return {
            "kubeconfig": str(self.directory / "controller-manager.kubeconfig"),
            "leader-elect": "false",
            "secure-port": "0",
            "kube-api-qps": QUERIES_PER_SECOND,
            "kube-api-burst": QUERIES_PER_SECOND,
            "service-account-private-key-file": str(self._account_keys[0]),
            "root-ca-file": str(self._authority.path),
            "node-monitor-grace-period": f"{grace}s",
            "node-monitor-period": "2s",
        }
