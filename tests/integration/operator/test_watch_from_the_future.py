"""A watch that goes on from a version that the API server has not reached, as after a restore.

The simulated API server (`tests/simulation/streams.py`) does the same.
"""

import asyncio
from contextlib import aclosing

import pytest

from gpujob_operator.client.connection import load_configuration
from gpujob_operator.client.kube import JOBS, Kube, Manifest
from tests.harness.builders import make_job
from tests.harness.cluster import RunningControlPlane
from tests.harness.manifests import job_manifest

pytestmark = pytest.mark.cluster

# Of the watch. The server ends it then, as one in which all was said.
SECONDS = 5


async def _events(kube: Kube, version: int) -> list[Manifest]:
    async with aclosing(kube.watch(JOBS, str(version), seconds=SECONDS)) as stream:
        return [event async for event in stream]


async def test_nothing_is_said_until_the_version_is_reached(
    control_plane: RunningControlPlane, namespace: str
) -> None:
    """No refusal, no event and no bookmark: it looks like a watch where nothing happens."""
    kube = Kube(await load_configuration(str(control_plane.kubeconfig)))
    try:
        version = int((await kube.list(JOBS)).resource_version)
        watches = [
            asyncio.create_task(_events(kube, since)) for since in (version, version + 100_000)
        ]
        manifest = job_manifest(make_job("job"))
        manifest["metadata"] = {"name": "job", "namespace": namespace}
        await kube.create(JOBS, manifest, namespace)
        now, future = await asyncio.gather(*watches)
    finally:
        await kube.close()
    # A bookmark may follow, shortly before the server ends the watch.
    changes = [event for event in now if event["type"] != "BOOKMARK"]
    assert [event["object"]["metadata"]["name"] for event in changes][:1] == ["job"]
    assert future == []
