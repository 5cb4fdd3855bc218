"""The operator and the agent as processes, with the rights that we ship and no more."""

import json
import secrets
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import yaml

from tests.harness.cluster import RunningControlPlane
from tests.harness.repository import ROOT as REPOSITORY

SYSTEM_NAMESPACE = "gpujob-system"
RULES_FOLDER = REPOSITORY / "charts" / "gpujob" / "files"
START_SECONDS = 60.0
STOP_SECONDS = 30.0
POLL_SECONDS = 0.02


def account_kubeconfig(plane: RunningControlPlane, name: str, folder: Path) -> Path:
    """A kubeconfig of a ServiceAccount with the rules of charts/gpujob/files/NAME-rules.yaml."""
    client = plane.client()
    rules = yaml.safe_load((RULES_FOLDER / f"{name}-rules.yaml").read_text())
    group = "/apis/rbac.authorization.k8s.io/v1"
    account = {"metadata": {"name": name}}
    client.apply(
        "/api/v1/namespaces/" + SYSTEM_NAMESPACE, _object("v1", "Namespace", SYSTEM_NAMESPACE)
    )
    accounts = f"/api/v1/namespaces/{SYSTEM_NAMESPACE}/serviceaccounts"
    client.apply(f"{accounts}/{name}", _object("v1", "ServiceAccount", name))
    version = "rbac.authorization.k8s.io/v1"
    role = _object(version, "ClusterRole", name) | {"rules": rules}
    client.apply(f"{group}/clusterroles/{name}", role)
    binding = _object(version, "ClusterRoleBinding", name) | {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": SYSTEM_NAMESPACE}],
    }
    client.apply(f"{group}/clusterrolebindings/{name}", binding)
    answer = client.create(f"{accounts}/{account['metadata']['name']}/token", {"spec": {}})
    return _with_token(plane.kubeconfig, answer["status"]["token"], folder / f"{name}.kubeconfig")


def _object(version: str, kind: str, name: str) -> dict[str, Any]:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name}}


def _with_token(admin: Path, token: str, path: Path) -> Path:
    data = yaml.safe_load(admin.read_text())
    for user in data["users"]:
        user["user"] = {"token": token}
    path.write_text(yaml.safe_dump(data))
    return path


def _started(arguments: tuple[str, ...]) -> tuple[str, ...]:
    """A module with its arguments, or Python's own options."""
    return arguments if arguments[0].startswith("-") else ("-m", *arguments)


class Process:
    """A child with a log of JSON lines."""

    def __init__(self, name: str, folder: Path, *arguments: str, **child: Any) -> None:
        """`child` is for `subprocess.Popen`: another environment or folder."""
        self.log_path = folder / f"{name}-{secrets.token_hex(3)}.log"
        options: dict[str, Any] = {"cwd": REPOSITORY, **child}
        with self.log_path.open("wb") as log:
            self._child = subprocess.Popen(
                [sys.executable, *_started(arguments)],
                stderr=log,
                stdout=log,
                text=False,
                **options,
            )

    @property
    def pid(self) -> int:
        return self._child.pid

    def lines(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        for line in self.log_path.read_text().splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:
                found.append({"message": line})
        return found

    def wait_for(self, message: str, seconds: float = START_SECONDS, **keys: Any) -> dict[str, Any]:
        """The first log line with this message and these keys."""
        deadline = time.monotonic() + seconds
        while True:
            for line in self.lines():
                if line["message"] == message and keys.items() <= line.items():
                    return line
            if self._child.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"no {message!r} in:\n{self.log_path.read_text()[-4000:]}")
            time.sleep(POLL_SECONDS)

    def send(self, number: signal.Signals) -> None:
        self._child.send_signal(number)

    def wait(self, seconds: float = STOP_SECONDS) -> int:
        return self._child.wait(seconds)

    def ends_within(self, seconds: float) -> bool:
        try:
            self.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def stop(self) -> int:
        """SIGTERM; the exit code."""
        if self._child.poll() is None:
            self._child.terminate()
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"did not stop:\n{self.log_path.read_text()[-4000:]}") from None

    def kill(self) -> None:
        if self._child.poll() is None:
            self._child.kill()
        self._child.wait(STOP_SECONDS)

    @property
    def alive(self) -> bool:
        return self._child.poll() is None


def start_operator(
    kubeconfig: Path,
    folder: Path,
    *options: str,
    command: tuple[str, ...] = ("gpujob_operator",),
    **child: Any,
) -> Process:
    """Waits for nothing: `started` in its log says the addresses."""
    return Process(
        "operator",
        folder,
        *command,
        "run",
        f"--kubeconfig={kubeconfig}",
        "--report-listen=127.0.0.1:0",
        "--metrics-listen=127.0.0.1:0",
        "--lease-seconds=3",
        *options,
        **child,
    )


def start_agent(kubeconfig: Path, folder: Path, *options: str, **child: Any) -> Process:
    command = ("gpujob_operator.agent", f"--kubeconfig={kubeconfig}", *options)
    return Process("agent", folder, *command, **child)
