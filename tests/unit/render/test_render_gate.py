"""The pod of a service's gate."""

from dataclasses import replace

import pytest

from gpujob_api.gate import (
    ENV_GATE_HOST,
    ENV_GATE_PORT,
    ENV_GATE_TOKEN_FILE,
    ENV_GATE_URL,
    GATE_GRACE_SECONDS,
    GATE_READY_PATH,
)
from gpujob_api.meta import LABEL_GATE, LABEL_REVISION, LABEL_SERVICE_UID
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.gate.__main__ import options_of
from gpujob_operator.gate.process import GateOptions
from gpujob_operator.render.gate import gate_pod, gate_revision
from tests.harness.builders import make_template
from tests.harness.services import UID, make_service

CONFIGURATION = Configuration(
    gate_image="registry/operator:1", report_url="https://operator.example/a/report"
)
SERVICE = make_service(port=9000)


def test_the_pod_has_no_right_but_to_report() -> None:
    spec = gate_pod(SERVICE, 3, CONFIGURATION)["spec"]
    assert spec["automountServiceAccountToken"] is False
    [volume] = spec["volumes"]
    [source] = volume["projected"]["sources"]
    assert source["serviceAccountToken"]["audience"] == "gpujob"
    [container] = spec["containers"]
    security = container["securityContext"]
    assert security["allowPrivilegeEscalation"] is False
    assert security["readOnlyRootFilesystem"] is True
    assert security["capabilities"] == {"drop": ["ALL"]}
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in container["env"]


def test_labels_and_owner_are_those_of_the_service() -> None:
    metadata = gate_pod(SERVICE, 3, CONFIGURATION)["metadata"]
    assert metadata["name"] == "answers-gate-3"
    assert metadata["labels"][LABEL_SERVICE_UID] == UID
    assert metadata["labels"][LABEL_GATE] == "true"
    assert metadata["labels"][LABEL_REVISION] == gate_revision(SERVICE, CONFIGURATION)
    [owner] = metadata["ownerReferences"]
    assert (owner["kind"], owner["uid"], owner["controller"]) == ("GPUService", UID, True)


def test_the_process_reads_the_environment_that_the_pod_has() -> None:
    [container] = gate_pod(SERVICE, 0, CONFIGURATION)["spec"]["containers"]
    environment = {one["name"]: one.get("value", "10.0.0.9") for one in container["env"]}
    options = options_of(environment)
    assert (options.host, options.port) == ("10.0.0.9", 9000)
    assert options.destination.url == "https://operator.example/a/gate"
    [mount] = container["volumeMounts"]
    assert options.destination.token_file.parent.as_posix() == mount["mountPath"]
    probe = container["readinessProbe"]["httpGet"]
    assert (probe["path"], probe["port"]) == (GATE_READY_PATH, 9000)


def test_the_process_ends_before_the_kubelet_kills_it() -> None:
    spec = gate_pod(SERVICE, 0, CONFIGURATION)["spec"]
    defaults = GateOptions.__dataclass_fields__
    assert spec["terminationGracePeriodSeconds"] == GATE_GRACE_SECONDS
    assert defaults["grace_seconds"].default < GATE_GRACE_SECONDS
    held = defaults["delay_seconds"].default + defaults["hold_seconds"].default
    assert held < defaults["grace_seconds"].default


def test_variables_that_are_missing_or_wrong_are_named() -> None:
    given = {
        ENV_GATE_URL: "http://operator/gate",
        ENV_GATE_TOKEN_FILE: "/token",
        ENV_GATE_HOST: "::1",
        ENV_GATE_PORT: "8000",
    }
    assert options_of(given).host == "::1"
    for name in given:
        for wrong in ({name: ""}, *([{name: "http"}, {name: "70000"}] * (name == ENV_GATE_PORT))):
            with pytest.raises(ValueError, match=name):
                options_of(given | wrong)


def test_what_changes_the_pod_changes_its_revision() -> None:
    first = gate_revision(SERVICE, CONFIGURATION)
    template = make_template(command=("serve",))
    template["spec"]["imagePullSecrets"] = [{"name": "registry"}]
    with_secret = make_service(port=9000, template=template)
    others = (
        gate_revision(SERVICE, replace(CONFIGURATION, gate_image="registry/operator:2")),
        gate_revision(SERVICE, replace(CONFIGURATION, report_url="http://x/report")),
        gate_revision(with_secret, CONFIGURATION),
    )
    assert len({first, *others}) == 4
    spec = gate_pod(with_secret, 0, CONFIGURATION)["spec"]
    assert spec["imagePullSecrets"] == [{"name": "registry"}]
    edited = make_service(port=9000, priority=5)
    assert gate_revision(edited, CONFIGURATION) == first, "an edit of replicas keeps the gate"
