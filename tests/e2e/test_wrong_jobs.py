"""What goes wrong in a cluster says what to do, in the job's own conditions."""

from typing import Any

import pytest

from tests.harness.ground import Team

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(200)]

WORDS_SECONDS = 30.0

Json = dict[str, Any]


def test_an_image_that_cannot_be_pulled(team: Team) -> None:
    """Nobody answers at the registry's address, which is the node's own loopback."""
    team.submit("unpulled", container={"image": "127.0.0.1:1/team/trainer:1"})
    assert "127.0.0.1:1/team/trainer:1" in team.wait_for_words(
        "unpulled", "ImagePull", WORDS_SECONDS
    )


def test_a_claim_that_is_not_there(team: Team) -> None:
    team.submit("homeless", spec={"checkpoint": {"volumeClaimName": "nowhere"}})
    assert "nowhere" in team.wait_for_words("homeless", "persistentvolumeclaim", WORDS_SECONDS)


def test_a_runtime_class_that_is_not_there(team: Team) -> None:
    team.submit("classless", template={"runtimeClassName": "kata"})
    assert "kata" in team.wait_for_words("classless", "RuntimeClass", WORDS_SECONDS)


def test_a_quota_that_is_used_up(team: Team) -> None:
    quota: Json = {"apiVersion": "v1", "kind": "ResourceQuota"}
    metadata = {"name": "small", "namespace": team.namespace}
    team.apply(quota | {"metadata": metadata, "spec": {"hard": {"pods": "0"}}})
    team.submit("squeezed")
    assert "small" in team.wait_for_words("squeezed", "quota", WORDS_SECONDS)


def test_a_command_that_is_not_in_the_image(team: Team) -> None:
    team.submit("commandless", command=["no-such-program"])
    assert "no-such-program" in team.wait_for_words(
        "commandless", "executable file not found", WORDS_SECONDS
    )
