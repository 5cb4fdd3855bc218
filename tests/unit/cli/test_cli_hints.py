"""The next step for a GPUJob that is refused."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.gpujob import GPUJob
from kubectl_gpujob.errors import UserError
from kubectl_gpujob.hints import (
    CONTAINER_FIELDS,
    HINTS_MAX,
    NOT_AVAILABLE,
    POD_FIELDS,
    hint_of,
    spec_paths,
    with_hints,
)
from kubectl_gpujob.question import nouns_of
from tests.harness.cli_jobs import MemoryCluster, run_command
from tests.harness.crds import schema_of

SPEC = schema_of(GPUJob)["properties"]["spec"]["properties"]
POD = SPEC["template"]["properties"]["spec"]["properties"]
CONTAINER = "spec.template.spec.containers[0]"


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("spec.gpuMemory", "spec.gpu.memory"),
        ("spec.gpu.memmory", "spec.gpu.memory"),
        ("spec.gpu.Memory", "spec.gpu.memory"),
        ("spec.gpuModel", "spec.gpu.models"),
        ("spec.checkpoint.claim", "spec.checkpoint.volumeClaimName"),
        ("spec.imag", "spec.image"),
        ("spec.qeue", "spec.queue"),
        ("spec.ttl", "spec.ttlSecondsAfterFinished"),
        ("spec.retry.hangTimeout", "spec.retry.hangTimeoutSeconds"),
        ("spec.gpu.priority", "spec.priority"),
        ("spec.template.gpu", "spec.gpu"),
        ("spec.template.spec.container", "spec.template.spec.containers"),
        ("spec.template.spec.gpusPerWorker", "spec.gpusPerWorker"),
        (f"{CONTAINER}.comand", f"{CONTAINER}.command"),
        (f"{CONTAINER}.gpu", "spec.gpu"),
        ("spec.template.spec.initContainers[3].imge", "spec.template.spec.initContainers[3].image"),
    ],
)
def test_the_nearest_field_is_named(path: str, meant: str) -> None:
    assert hint_of(path) == f"did you mean {meant}?"


@pytest.mark.parametrize(
    "path", ["spec.foo", "spec.z", "spec.spot.deadline", "spec.checkpoint.e", "x", ""]
)
def test_no_field_is_made_up(path: str) -> None:
    assert hint_of(path) == ""


def test_what_a_template_does_not_have_is_not_available() -> None:
    assert hint_of("spec.template.spec.hostNetwork") == "hostNetwork is not available in a GPUJob"


def test_the_names_are_those_of_the_crd() -> None:
    assert set(POD_FIELDS) == set(POD)
    assert set(CONTAINER_FIELDS) == set(POD["containers"]["items"]["properties"])
    assert set(NOT_AVAILABLE).isdisjoint(POD)
    assert {path.split(".")[1] for path in spec_paths()} == set(SPEC)


@given(st.sampled_from(spec_paths()))
def test_every_field_is_found_without_its_dots_and_in_any_case(path: str) -> None:
    squashed = "spec." + path.removeprefix("spec.").replace(".", "").upper()
    found = hint_of(squashed)
    assert found.removeprefix("did you mean ").removesuffix("?").lower().replace(".", "") == (
        squashed.lower().replace(".", "")
    )


@given(st.text(max_size=80))
def test_any_words_are_kept(words: str) -> None:
    assert with_hints(words).startswith(words)


def test_hints_are_few_and_each_is_given_once() -> None:
    words = ", ".join(f'unknown field "spec.gpu.memory{n}"' for n in range(20))
    assert with_hints(words) == f"{words}; did you mean spec.gpu.memory?"
    assert HINTS_MAX == 5


def test_a_command_in_one_text_gets_advice() -> None:
    words = (
        f'{CONTAINER}.command: Invalid value: "string": {CONTAINER}.command in body must be of '
        'type array: "string"'
    )
    assert with_hints(words).endswith("write the command as a list of words, such as "
                                      "[python, train.py]")  # fmt: skip


def of_type(path: str, kind: str, given: str) -> str:
    """The words of the API server."""
    return f'{path}: Invalid value: "{given}": {path} in body must be of type {kind}: "{given}"'


SECONDS = "give the seconds as a whole number, such as 3600 for one hour"
INTERVAL = "give Auto, or a whole number of s, m or h, such as 30s, 10m or 2h"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (of_type("spec.ttlSecondsAfterFinished", "integer", "string"), SECONDS),
        (of_type("spec.ttlSecondsAfterFinished", "integer", "number"), SECONDS),
        (of_type("spec.retry.hangTimeoutSeconds", "integer", "string"), SECONDS),
        (of_type("spec.template.spec.activeDeadlineSeconds", "integer", "string"), SECONDS),
        (of_type("spec.checkpoint.interval", "string", "integer"), INTERVAL),
        (
            'spec.checkpoint.interval: Invalid value: "1d": spec.checkpoint.interval in body '
            "should match '^(Auto|[1-9][0-9]{0,5}[smh])$'",
            INTERVAL,
        ),
    ],
    ids=lambda value: value.partition(":")[0],
)
def test_a_time_gets_its_unit_and_an_example(words: str, hint: str) -> None:
    assert with_hints(words) == f"{words}; {hint}"


@pytest.mark.parametrize(
    "words",
    [
        "spec.ttlSecondsAfterFinished: must be from 0 to 2147483647; got -1",
        of_type("spec.workers", "integer", "string"),
        of_type("spec.checkpoint.keep", "integer", "string"),
    ],
)
def test_other_numbers_get_no_unit(words: str) -> None:
    assert with_hints(words) == words


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        ({"ttlSecondsAfterFinished": "1h"}, SECONDS),
        ({"retry": {"hangTimeoutSeconds": "10m"}}, SECONDS),
        ({"checkpoint": {"interval": "10min"}}, INTERVAL),
        ({"checkpoint": {"interval": 600}}, INTERVAL),
    ],
    ids=str,
)
def test_times_of_a_file_get_the_hint_without_the_api_server(
    spec: dict[str, Any], hint: str
) -> None:
    with pytest.raises(UserError) as caught:
        nouns_of(yaml.safe_dump(manifest(**spec)), "job.yaml", "team")
    assert str(caught.value).endswith(f"; {hint}")


def manifest(**spec: Any) -> dict[str, Any]:
    head = {"apiVersion": "gpujob.dev/v1alpha1", "kind": "GPUJob", "metadata": {"name": "a"}}
    return {**head, "spec": {"image": "i", **spec}}


def test_files_are_answered_with_hints_with_and_without_the_api_server(tmp_path: Path) -> None:
    text = yaml.safe_dump(manifest(gpuMemory="20Gi"))
    with pytest.raises(UserError, match=r'field "spec.gpuMemory"; did you mean spec.gpu.memory\?$'):
        nouns_of(text, "job.yaml", "team")
    path = tmp_path / "job.yaml"
    path.write_text(text)
    cluster = MemoryCluster(refuses='strict decoding error: unknown field "spec.gpuMemory"')
    ran = run_command(cluster, "simulate", "-f", str(path))
    assert str(ran.exception).endswith("did you mean spec.gpu.memory?")


def test_the_short_form_has_no_unknown_field() -> None:
    text = yaml.safe_dump(manifest(gpus="A10:2", command=["python"], env=[{"name": "A"}]))
    [job] = nouns_of(text, "job.yaml", "team")
    assert isinstance(job, GPUJob)
    assert job.spec.gpus_per_worker == 2
