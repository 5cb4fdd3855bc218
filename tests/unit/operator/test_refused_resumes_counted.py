"""`gpujob_resumes_refused_total` has every refused resume once, when its event comes true."""

from gpujob_api.gpujob import GPUJob
from gpujob_operator.client.api_errors import Conflict
from gpujob_operator.client.kube import JOBS
from gpujob_operator.decide.model.plan import EventNote, WriteStatus
from tests.harness.builders import make_job, running
from tests.harness.executor_bench import ExecutorBench, at_version
from tests.harness.manifests import job_manifest

REFUSED = EventNote("ResumeRefused", "attempt 2: the checkpoint of step 190 did not bring it back")


def stored(bench: ExecutorBench) -> GPUJob:
    job = running(make_job(), attempt=2)
    manifest = bench.kube.put(JOBS, job_manifest(job))
    return at_version(job, manifest["metadata"]["resourceVersion"])


async def count(bench: ExecutorBench, *events: EventNote) -> float:
    job = stored(bench)
    await bench.run(WriteStatus(job, job.status, events))
    return bench.metrics.resumes_refused._value.get()


async def test_a_refused_resume_counts_once() -> None:
    bench = ExecutorBench()
    assert await count(bench, REFUSED, EventNote("Tuned", "runs with bfloat16")) == 1
    assert b"gpujob_resumes_refused_total 1.0" in bench.metrics.text()


async def test_other_events_do_not_count() -> None:
    assert await count(ExecutorBench(), EventNote("Resumed", "attempt 2")) == 0


async def test_what_was_not_written_does_not_count() -> None:
    bench = ExecutorBench()
    bench.kube.fail("replace", JOBS.plural, Conflict(409, "Conflict", "another writer"))
    assert await count(bench, REFUSED) == 0
