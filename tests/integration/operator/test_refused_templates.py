"""Templates that the CRD takes and a real API server refuses as pods (I4, I10)."""

from typing import Any

import pytest

from tests.harness.stage import Stage

pytestmark = pytest.mark.cluster

# What a schema does not say of a pod, and words of the API server's answer.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("number", {"securityContext": {"runAsUser": -5}}, "must be between 0 and 2147483647"),
    ("type", {"securityContext": {"runAsUser": "me"}}, "cannot unmarshal string"),
    (
        "address",
        {"hostAliases": [{"ip": "here", "hostnames": ["h"]}]},
        "must be a valid IP address",
    ),
]


def scheduled(stage: Stage, name: str) -> str:
    found = (stage.job(name).get("status") or {}).get("conditions") or ()
    texts = [f"{c['reason']}: {c['message']}" for c in found if c["type"] == "Scheduled"]
    return texts[0] if texts else ""


def template(**pod: Any) -> dict[str, Any]:
    return {"spec": {"containers": [{"name": "worker", "image": "trainer"}], **pod}}


@pytest.mark.promise("I4")
def test_the_servers_words_are_the_condition_and_no_gpu_is_reserved(stage: Stage) -> None:
    stage.operator()
    stage.measure()
    for name, pod, words in REFUSED:
        stage.apply_job(name, template=template(**pod))
        stage.wait(lambda n=name, w=words: w in scheduled(stage, n), f"the words about {name}")
        assert scheduled(stage, name).startswith("PodRejected: the API server refuses the job's")
        status = stage.job(name)["status"]
        assert status.get("attempt", 0) == 0
        assert "placement" not in status
    assert stage.pod_names() == []
    # The GPU is anybody's: a job behind the refused ones has it at once.
    stage.apply_job("job")
    stage.wait(lambda: stage.pod_names() == ["job-1-0"], "the pod of a job that is in order")
