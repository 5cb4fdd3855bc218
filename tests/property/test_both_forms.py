"""A job in the short form and the same job in the long form get equal decisions, pods and
workloads.
"""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.gpujob import GPUJob
from gpujob_api.manifest import from_manifest, gpujob_from_manifest
from gpujob_operator.decide.measurement.fingerprint import program_of, workload_of
from gpujob_operator.read.job_specs import JobSpecs
from tests.effects import plans, workers

pytestmark = pytest.mark.promise("I9")

WORDS = st.lists(
    st.sampled_from(["python", "train.py", "--lr", "0.1", "--epochs=3", "-m"]), max_size=4
)
VARIABLES = st.dictionaries(st.sampled_from(["SEED", "LR", "MODE"]), st.sampled_from(["1", "x"]))
MODELS = st.sampled_from(["", "A10", "nvidia a10", "H100"])
REST = st.fixed_dictionaries(
    {},
    optional={
        "priority": st.integers(-2, 2),
        "workers": st.integers(1, 2),
        "queue": st.sampled_from(["default", "closed"]),
        "workload": st.just("resnet"),
        "sharing": st.sampled_from([{"mode": "Exclusive"}, {"maxSlowdownPercent": 50}]),
        "optimize": st.just({"precision": "float32"}),
    },
)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """The spec in both forms."""
    container: dict[str, Any] = {"image": draw(st.sampled_from(["trainer", "i@sha256:0"]))}
    for name in ("command", "args"):
        if draw(st.booleans()):
            container[name] = draw(WORDS)
    if draw(st.booleans()):
        container["env"] = [{"name": n, "value": v} for n, v in draw(VARIABLES).items()]
    count, model, rest = draw(st.integers(1, 2)), draw(MODELS), draw(REST)
    memory = draw(st.sampled_from([{}, {"memory": "2Gi"}]))
    gpus = f"{model}:{count}" if model else draw(st.sampled_from([count, str(count)]))
    request = {**memory, **({"models": [model]} if model else {})}
    template = {"spec": {"containers": [{"name": "worker", **container}]}}
    short = {**rest, **container, "gpus": gpus, "gpu": memory}
    return short, {**rest, "template": template, "gpusPerWorker": count, "gpu": request}


def job_of(spec: dict[str, Any]) -> GPUJob:
    metadata = {
        "name": "job",
        "namespace": "team",
        "uid": "uid-job",
        "generation": 1,
        "creationTimestamp": "2026-01-01T00:00:00Z",
    }
    head = {"apiVersion": "gpujob.dev/v1alpha1", "kind": "GPUJob", "metadata": metadata}
    return from_manifest(GPUJob, {**head, "spec": spec})


@given(pairs())
def test_both_forms_are_one_job(pair: tuple[dict[str, Any], dict[str, Any]]) -> None:
    short, long = map(job_of, pair)
    assert short == long
    assert plans.placed(short) == plans.placed(long)
    assert workers.pod(short) == workers.pod(long)
    assert workload_of(short.spec) == workload_of(long.spec)
    assert program_of(short.spec) == program_of(long.spec)


@given(st.lists(pairs(), min_size=1, max_size=4))
def test_the_operators_reader_keeps_them_equal(
    many: list[tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    specs = JobSpecs()
    for short, long in many * 2:
        found = specs.read(short)
        assert found == specs.read(long)
        assert found == job_of(long).spec


def test_the_reader_of_manifests_takes_both() -> None:
    manifest = {"metadata": {"name": "a"}, "spec": {"image": "trainer"}}
    assert gpujob_from_manifest(manifest).spec.worker_container()["image"] == "trainer"
