"""The operator process where the world is odd: no user's name, no home, objects nobody can read.

The API server is `http_api`, so that it can say what a real one never would.
"""

import json
import os
import tempfile
import urllib.error
import urllib.request
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from gpujob_api.meta import LABEL_MANAGED
from gpujob_operator.client.kube import GPU_NODES, JOBS, NODES, PODS, QUEUES
from tests.harness.builders import make_job, placed
from tests.harness.http_api import HttpApi
from tests.harness.manifests import job_manifest, node_manifest, pod_manifest
from tests.harness.odd_json import ODD_SCALARS, to_json
from tests.harness.operator_process import Process, start_operator
from tests.harness.waiting import eventually

JOB = make_job()
UNNAMED = 65532
# Becomes a user without a name; imports first, for Python may lie where that user cannot read.
# Where becoming another user is not allowed, the child at least finds no name for its own.
NAMELESS = f"""
import os, pwd, sys
import gpujob_operator.run
from gpujob_operator.__main__ import main
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({UNNAMED})
    os.setuid({UNNAMED})
else:
    def getpwuid(uid):
        raise KeyError("getpwuid(): uid not found")
    pwd.getpwuid = getpwuid
sys.exit(main())
"""


class _World:
    def __init__(self, api: HttpApi, folder: Path) -> None:
        self.api = api
        self.folder = folder
        self.kubeconfig = api.write_kubeconfig(folder / "kubeconfig")
        self.kubeconfig.chmod(0o644)
        self.processes: list[Process] = []
        self.url = ""

    def start(self, **child: Any) -> Process:
        operator = start_operator(self.kubeconfig, self.folder, **child)
        self.processes.append(operator)
        self.url = operator.wait_for("started")["metrics"]
        operator.wait_for("leadership changed", leads=True)
        return operator

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(f"{self.url}{path}", timeout=20) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def metric(self, series: str) -> float:
        """0 where the series is not there."""
        lines = self.get("/metrics")[1].splitlines()
        values = [line.rpartition(" ")[2] for line in lines if line.startswith(f"{series} ")]
        return float(values[0]) if values else 0.0

    def put_job(self, name: str) -> None:
        manifest = job_manifest(JOB)
        manifest["metadata"] = {"name": name, "namespace": "team"}
        self.api.put(JOBS, {**manifest, "status": {}})

    async def decided(self, name: str) -> None:
        """Well within the five minutes after which everything is listed anew."""
        await eventually(lambda: bool(self.status(name)), 20, f"{name} has a status")

    def status(self, name: str) -> dict[str, Any]:
        return self.api.stored(JOBS, name, "team").get("status") or {}

    async def ready(self) -> None:
        await eventually(lambda: self.get("/readyz")[0] == 200, 20, "ready")


@pytest.fixture
def world() -> Generator[_World]:
    # Not pytest's folder: another user must be able to read it.
    with tempfile.TemporaryDirectory() as name, HttpApi().running() as api:
        Path(name).chmod(0o755)
        world = _World(api, Path(name))
        yield world
        for process in world.processes:
            process.kill()


def _as_in_the_image() -> dict[str, Any]:
    """A number for a user, no home, nothing to write to."""
    environment = {"PATH": os.environ["PATH"], "TMPDIR": "/proc", "PYTHONDONTWRITEBYTECODE": "1"}
    return {"env": environment, "cwd": "/", "command": ("-c", NAMELESS)}


async def test_a_user_without_name_home_or_folder_is_user_enough(world: _World) -> None:
    operator = world.start(**_as_in_the_image())
    await world.ready()
    world.put_job("job")
    await world.decided("job")
    assert world.get("/healthz")[0] == 200
    assert world.metric('gpujob_watch_events_total{kind="GPUJob"}') >= 1
    assert world.metric('gpujob_part_restarts_total{part="kopf"}') == 0
    assert operator.stop() == 0


@pytest.mark.promise("I10")
async def test_pods_that_nobody_can_read_stop_nobody(world: _World) -> None:
    world.api.put(NODES, node_manifest("n0", labels={LABEL_MANAGED: "true"}))
    world.start()
    await world.ready()
    for number, value in enumerate(ODD_SCALARS):
        pod = pod_manifest(placed(JOB), phase="Failed")
        pod["metadata"] |= {"name": f"odd-{number}-0", "uid": f"uid-{number}"}
        ended = {"terminated": {"exitCode": 1, "message": value}}
        pod["status"]["containerStatuses"] = [{"name": "worker", "state": ended}]
        world.api.put_raw(PODS, to_json(pod))
        world.api.put_raw(PODS, to_json({**pod, "metadata": value}))
    fat = pod_manifest(placed(JOB))
    fat["metadata"] |= {"name": "fat", "uid": "uid-fat"}
    fat["spec"]["containers"] = [{"name": "c", "env": [{"name": "A", "value": "x" * 8_000_000}]}]
    world.api.put(PODS, fat)
    unnamed = 'gpujob_unreadable_objects_total{kind="Pod",reason="metadata"}'
    await eventually(lambda: world.metric(unnamed) >= len(ODD_SCALARS), 20, "all were counted")
    world.put_job("job")
    await world.decided("job")
    restarted = world.processes[0]
    assert restarted.stop() == 0
    world.start()
    await world.ready()
    world.put_job("after")
    await world.decided("after")


@pytest.mark.promise("I10")
async def test_objects_of_ours_that_nobody_can_read_stop_nobody(world: _World) -> None:
    """Also not kopf, which would end over them."""
    world.start()
    await world.ready()
    # The operator is ready once everything was listed; some watches begin only then.
    kinds = (JOBS, QUEUES, GPU_NODES)
    await eventually(lambda: all(map(world.api.watches, kinds)), 30, "all kinds are watched")
    deep = b'{"a":' * 20_000 + b"1" + b"}" * 20_000
    names = b'"apiVersion":"gpujob.dev/v1alpha1","metadata":{"name":"odd","uid":"uid-odd"}'
    for kind in kinds:
        world.api.put_raw(kind, b'{%s,"spec":%s}' % (names, deep))
        world.api.put_raw(kind, b'{"metadata":{},"spec":{"n":%s}}' % (b"9" * 6000))
        world.api.say(kind, b"no event\n")
        world.api.say(kind, b'{"type":"ADDED","object":[]}\n')
    world.put_job("job")
    await world.decided("job")
    # kopf may have handed over the job before it has counted the others.
    counted = 'gpujob_unreadable_objects_total{kind="GPUJob",reason="%s"}'
    await eventually(lambda: world.metric(counted % "metadata") >= 2, 30)
    await eventually(lambda: world.metric(counted % "line") >= 1, 30)
    assert world.metric('gpujob_part_restarts_total{part="kopf"}') == 0
    world.api.end_watches(JOBS, compact=True)
    world.put_job("after")
    await world.decided("after")
    assert world.metric('gpujob_part_restarts_total{part="kopf"}') == 0
    assert any(line["message"] == "object ignored" for line in world.processes[0].lines())


async def test_not_ready_while_one_kind_was_never_listed(world: _World) -> None:
    world.api.fail(QUEUES, "", 403, {"reason": "Forbidden"}, methods=["GET"])
    world.start()
    await eventually(lambda: world.get("/readyz/events")[0] == 503, 20)
    await eventually(
        lambda: json.loads(world.get("/readyz/events")[1])["waitingFor"] == ["a list of GPUQueue"],
        20,
        "the others were listed",
    )
    assert world.get("/healthz")[0] == 200
    world.api.heal()
    await eventually(lambda: world.get("/readyz/events")[0] == 200, 60, "the last one was listed")
    await world.ready()
