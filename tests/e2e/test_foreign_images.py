"""Images as people bring them: each is tuned and resumed, or says why not."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpujob_api.codec import encode_given
from gpujob_api.settings import TunedSettings
from gpujob_local.images.archive import Image
from tests.harness.foreign_images import CONDA_VERSION, ForeignImages
from tests.harness.ground import STEPS, Team, closed, drained
from tests.harness.musl_python import musl_refusal
from tests.harness.pythons import python
from tests.harness.release import Release
from tests.harness.waiting import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(600)]

Json = dict[str, Any]
TRAIN = ["python3", "/script/resumable.py", str(STEPS), "0.3"]
# Everything is switched off but for one setting, which changes no result and is taken however fast
# the machine is.
ONE_SETTING: Json = {
    "mode": "Auto",
    "precision": "float32",
    "compile": "Off",
    "dataLoading": "Off",
    "activationCheckpointing": "On",
}
TUNED = encode_given(TunedSettings(activation_checkpointing=True))
NO_TORCH = "import sys, time; time.sleep(5); print('done by', sys.version_info[:2])"


@pytest.fixture(scope="module")
def images(release: Release) -> ForeignImages:
    assert release
    return ForeignImages()


def submit(team: Team, name: str, image: Image, command: list[str], **changes: Any) -> None:
    """With one container, which is not called `worker`."""
    team.cluster.add_image(image)
    container = {"name": "trainer", "image": image.names[0]}
    team.submit(name, command=command, container=container, **changes)


def prefix_or_skip(version: str) -> Path:
    """Where this machine has a Python of the version, in a folder of its own."""
    found = python(version)
    if found is None:
        pytest.skip(f"no Python {version} here")
    command = [found, "-c", "import sys; print(sys.base_prefix)"]
    prefix = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    if prefix == "/usr":
        pytest.skip(f"Python {version} here is the system's own")
    return Path(prefix)


def test_an_image_of_ones_own_is_measured_and_resumed(team: Team, images: ForeignImages) -> None:
    """Nothing of GPUJob is in it, not even in its command."""
    submit(team, "own", images.own(), TRAIN)
    team.wait_for_phase("own", "Running")
    saved = team.wait_for_checkpoint("own")
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "own-1-0"}}
    team.client.create(f"/api/v1/namespaces/{team.namespace}/pods/own-1-0/eviction", body)
    team.wait_for_phase("own", "Succeeded", 240)
    status = team.status("own")
    assert status["attempt"] == 2
    steps = team.steps_of("own", 2)
    assert steps == list(range(status["resumedFromStep"] + 1, STEPS + 1))
    assert steps[0] > saved
    assert status["measurement"]["torchVersion"]
    assert team.condition("own", "Untuned") == {}


def test_a_script_of_ones_own_is_tuned_and_resumed(
    release: Release, team: Team, images: ForeignImages
) -> None:
    """Neither the image nor the script knows anything of GPUJob. The tuned run, which was moved to
    another node, ends with the weights of the plain one.
    """
    command = ["python3", "/script/unmodified.py", str(STEPS)]
    submit(team, "plain", images.own(), [*command, "0"], spec={"optimize": {"mode": "Off"}})
    team.wait_for_phase("plain", "Succeeded")
    # Its log goes with a node that is drained.
    digest = team.final_digest("plain")
    (operator,) = release.operators()
    # The node that goes is not the operator's.
    with closed(team, operator["spec"]["nodeName"]):
        submit(team, "tuned", images.own(), [*command, "1"], spec={"optimize": ONE_SETTING})
        team.wait_for_phase("tuned", "Running")
    wait_until(lambda: team.status("tuned").get("tuned") == TUNED, 120, "it is tuned")
    saved = team.wait_for_checkpoint("tuned")
    node = team.node_of("tuned")
    with drained(team, node):
        wait_until(lambda: team.status("tuned").get("attempt") == 2, 120, "it moves")
        team.wait_for_phase("tuned", "Succeeded", 240)
    assert team.node_of("tuned") != node
    status = team.status("tuned")
    assert status["resumedFromStep"] >= saved
    assert status["tuned"] == TUNED
    said = team.events("tuned")
    assert any("activation checkpointing" in message for message in said["Tuned"])
    assert said["Resumed"] == [f"attempt 2 resumes after step {status['resumedFromStep']}"]
    steps = team.log("tuned-2-0").count("loss ")
    assert steps == STEPS - status["resumedFromStep"]
    assert team.final_digest("tuned") == digest
    assert team.condition("tuned", "Untuned") == {}


def test_an_environment_of_conda(team: Team, images: ForeignImages) -> None:
    """Its Python and its torch are neither the system's nor where the system has them."""
    image = images.conda(prefix_or_skip(CONDA_VERSION))
    command = ["python", *TRAIN[1:2], "12", "0.1"]
    submit(team, "conda", image, command, spec={"optimize": {"mode": "Auto"}})
    team.wait_for_phase("conda", "Succeeded")
    assert team.steps_of("conda", 1) == list(range(1, 13))
    assert team.status("conda")["measurement"]["torchVersion"]
    assert team.condition("conda", "Untuned") == {}


def test_an_image_without_a_shell(team: Team, images: ForeignImages) -> None:
    """The script itself imports what only the init container brings."""
    command = [*TRAIN[:2], "12", "0.1"]
    submit(team, "bare", images.distroless(), command, spec={"optimize": {"mode": "Auto"}})
    team.wait_for_phase("bare", "Succeeded")
    assert team.steps_of("bare", 1) == list(range(1, 13))
    assert team.condition("bare", "Untuned") == {}


@pytest.mark.parametrize("version", ["3.9", "3.13"])
def test_a_python_without_torch(team: Team, images: ForeignImages, version: str) -> None:
    image = images.other_python(version, prefix_or_skip(version))
    command = [f"python{version}", "-c", NO_TORCH]
    submit(team, "plain", image, command, spec={"optimize": {"mode": "Auto"}})
    team.wait_for_phase("plain", "Succeeded")
    said = team.condition("plain", "Untuned")
    assert said["status"] == "True"
    assert said["message"].startswith("not tuned: ")
    assert "done by" in team.log("plain-1-0")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_an_image_like_alpines(team: Team, images: ForeignImages) -> None:
    """Its C library is musl, for which there is no torch. The Python is built first: minutes."""
    if words := musl_refusal():
        pytest.skip(words)
    image = images.musl()
    submit(team, "plain", image, ["python3", "-c", NO_TORCH], spec={"optimize": {"mode": "Auto"}})
    team.wait_for_phase("plain", "Succeeded")
    said = team.condition("plain", "Untuned")
    assert said["message"].startswith("not tuned: ")
    assert "musl" in said["message"]
    assert "done by" in team.log("plain-1-0")
    submit(team, "trains", image, ["python3", "-c", "import torch"])
    team.wait_for_phase("trains", "Failed")
    last = team.status("trains")["attempt"]
    assert "No module named 'torch'" in team.log(f"trains-{last}-0")


def test_no_python_at_all(team: Team, images: ForeignImages) -> None:
    """It is measured from outside and packed, and says so while it runs."""
    submit(team, "foreign", images.without_python(), ["sleep", "600"], spec={"optimize": {}})
    team.wait_for_phase("foreign", "Running")
    wait_until(
        lambda: team.condition("foreign", "Untuned").get("reason") == "NoReports",
        180,
        "it says that nothing is tuned",
    )
    message = team.condition("foreign", "Untuned")["message"]
    assert message.startswith("not tuned: it does not report")
    assert "measured from outside, it reserves" in message
    assert team.status("foreign")["reservation"]["source"] == "Measured"


def test_images_whose_user_cannot_be_known(team: Team, images: ForeignImages) -> None:
    submit(team, "root", images.root(), TRAIN)
    team.wait_for_words("root", "image will run as root", "runAsUser set to a number")
    submit(team, "named", images.named_user(), TRAIN)
    team.wait_for_words("named", "non-numeric user (nobody)", "runAsUser set to a number")
    # What the words ask for is enough.
    security = {"securityContext": {"runAsUser": 1000}}
    image = images.root()
    submit(team, "given", image, [*TRAIN[:2], "4", "0"], template=security)
    team.wait_for_phase("given", "Succeeded")
