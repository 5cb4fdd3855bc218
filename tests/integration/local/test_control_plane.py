"""The control plane starts, serves our kinds, and leaves nothing behind."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from gpujob_local.control_plane.control_plane import ControlPlaneOptions
from gpujob_local.processes.processes import marked_processes
from tests.harness.cluster import RunningControlPlane, running_control_plane

pytestmark = pytest.mark.cluster

OWNER = """
import sys, time
from pathlib import Path
from gpujob_local.control_plane.control_plane import ControlPlane
from gpujob_local.processes.processes import Watchdog
from gpujob_local.control_plane.tools import find_tools
directory, marker = Path(sys.argv[1]), sys.argv[2]
watchdog = Watchdog(marker, directory)
ControlPlane(directory, find_tools(), marker).start()
print("ready", flush=True)
time.sleep(600)
"""


def test_our_kinds_are_served(control_plane: RunningControlPlane) -> None:
    names = control_plane.kubectl("api-resources", "--api-group=gpujob.dev", "-o", "name").stdout
    assert "gpujobs.gpujob.dev" in names.split()


async def test_the_official_client_reaches_it(control_plane: RunningControlPlane) -> None:
    from kubernetes.aio import client

    async with control_plane.api_client() as api:
        version = await client.VersionApi(api).get_code()
    assert version.git_version.startswith("v1.36.")


def test_objects_are_collected_with_their_owner(
    control_plane: RunningControlPlane, namespace: str
) -> None:
    client = control_plane.client()
    path = f"/api/v1/namespaces/{namespace}/configmaps"
    owner = client.create(path, {"metadata": {"name": "owner"}})
    reference = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "name": "owner",
        "uid": owner["metadata"]["uid"],
    }
    client.create(path, {"metadata": {"name": "owned", "ownerReferences": [reference]}})
    client.delete(f"{path}/owner")
    control_plane.control_plane.wait_until(
        lambda: "owned" not in {item["metadata"]["name"] for item in client.get(path)["items"]},
        "collection of the owned object",
    )


def test_stop_leaves_no_process_and_no_file_and_audit_logs_requests() -> None:
    with running_control_plane(ControlPlaneOptions(audit=True), crds=False) as running:
        directory = running.control_plane.directory
        marker = running.control_plane.marker_value
        pids = {child.pid for child in running.control_plane.children.values()}
        assert set(marked_processes(marker)) == pids
        assert "/api/v1/namespaces/default/serviceaccounts/default" in (
            running.control_plane.audit_log.read_text()
        )
    assert marked_processes(marker) == []
    assert not directory.exists()


def test_the_api_server_comes_back_with_its_state() -> None:
    with running_control_plane(ControlPlaneOptions(controllers=False), crds=False) as running:
        plane = running.control_plane
        path = "/api/v1/namespaces/default/configmaps"
        plane.client().create(path, {"metadata": {"name": "kept"}, "data": {"a": "1"}})
        plane.stop_component("kube-apiserver")
        assert not plane.ready()
        plane.start_component("kube-apiserver")
        plane.wait_until(plane.ready, "kube-apiserver")
        assert plane.client().get(f"{path}/kept")["data"] == {"a": "1"}


def test_nothing_is_left_when_the_owner_is_killed() -> None:
    directory = Path(tempfile.mkdtemp(prefix="gpujob-test-"))
    marker = f"killed-{os.getpid()}"
    command = [sys.executable, "-c", OWNER, str(directory), marker]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        assert len(marked_processes(marker)) == 4
        owner.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while marked_processes(marker) or directory.exists():
        assert time.monotonic() < deadline, f"left: {marked_processes(marker)} or {directory}"
        time.sleep(0.05)
