"""GPUJobs from Python, such as a notebook, through kubectl.

from kubectl_gpujob.client import Client

job = Client().submit("python train.py --lr 3e-4", image="train:1", gpus="1:H100", directory=".")
for line in job.logs():
    print(line)
print(job.report()["speedup"])
"""

import argparse
import queue
import shlex
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from io import StringIO, TextIOBase
from pathlib import Path
from typing import Any, TextIO, cast

from gpujob_api.gpujob import GPUJob, JobPhase
from kubectl_gpujob.cluster import Cluster, connect
from kubectl_gpujob.errors import EXIT_JOB_FAILED, EXIT_TIMED_OUT, UsageError, UserError
from kubectl_gpujob.grammar import World, module_of, parser_of, verb_named
from kubectl_gpujob.kubectl import Target
from kubectl_gpujob.screen import Screen
from kubectl_gpujob.text import SECONDS_MAX
from kubectl_gpujob.verbs import change, logs, report, submit, wait, why
from kubectl_gpujob.verbs.list import progress, status


class JobFailedError(UserError):
    """The job failed. The text has its last error."""


class JobTimeoutError(UserError):
    """The job was not there yet when the time was over."""


class Client:
    """A cluster and a namespace, by kubectl's flags of the same names.

    All methods raise `UserError` with a whole message.
    """

    def __init__(
        self,
        *,
        namespace: str | None = None,
        context: str | None = None,
        kubeconfig: str | Path | None = None,
        cluster: Cluster | None = None,
    ) -> None:
        path = Path(kubeconfig) if kubeconfig is not None else None
        self.cluster = cluster or connect(Target(path, context, namespace))

    def submit(
        self,
        command: str | Sequence[str],
        *,
        name: str | None = None,
        image: str | None = None,
        gpus: int | str = 1,
        memory: str | None = None,
        workers: int | None = None,
        queue: str | None = None,
        priority: int | None = None,
        claim: str | None = None,
        data: Mapping[str, str] | None = None,
        env: Mapping[str, str] | None = None,
        secrets: Sequence[str] = (),
        spot: str | None = None,
        directory: str | Path | None = None,
    ) -> "Job":
        """Creates a job like `kubectl gpujob submit`. `data` maps claims to paths in the container.

        `command` is split like a shell's if it is a text.
        """
        given = {
            "--image": image, "--gpus": gpus, "--memory": memory, "--workers": workers,
            "--queue": queue, "--priority": priority, "--claim": claim, "--spot": spot,
            "--dir": directory,
        }  # fmt: skip
        words = [name] if name is not None else []
        words += [f"{option}={value}" for option, value in given.items() if value is not None]
        words += [f"--data={key}:{path}" for key, path in (data or {}).items()]
        words += [f"--env={key}={value}" for key, value in (env or {}).items()]
        words += [f"--secret={secret}" for secret in secrets]
        options = _options("submit", words)
        options.command = shlex.split(command) if isinstance(command, str) else list(command)
        options.output = "name"
        out = StringIO()
        submit.run(options, _world(self.cluster, out))
        return Job(self.cluster, out.getvalue().strip().rpartition("/")[2])

    def job(self, name: str) -> "Job":
        """Returns the job of this name, which must exist."""
        self.cluster.job(name)
        return Job(self.cluster, name)

    def jobs(self, selector: str = "") -> list["Job"]:
        found = self.cluster.jobs(selector=selector)
        return [Job(self.cluster, job.metadata.name) for job in found]


@dataclass(frozen=True, slots=True)
class Job:
    """A job in the cluster. Each property reads it anew."""

    _cluster: Cluster
    name: str

    @property
    def object(self) -> GPUJob:
        return self._cluster.job(self.name)

    @property
    def status(self) -> str:
        """The phase, or the reason of a job that waits or failed."""
        return status(self.object)

    @property
    def progress(self) -> str:
        return progress(self.object)

    def why(self) -> dict[str, Any]:
        """Returns conditions, failure and the next step."""
        return why.as_json(self.object, None)

    def report(self) -> dict[str, Any]:
        """Returns measurements, settings, checkpoint and attempts."""
        return report.as_json(self.object)

    def wait(self, event: str = "finished", timeout_seconds: float = SECONDS_MAX) -> "Job":
        """Waits until the job ends, runs (`running`) or reaches a step (`step=100`).

        Raises `JobFailedError` if it failed first, and `JobTimeoutError`.
        """
        code = wait.wait(
            self._cluster, self.name, event, timeout_seconds, _world(self._cluster, StringIO())
        )
        if code == EXIT_JOB_FAILED:
            failure = self.object.status.failure
            raise JobFailedError(f"{self.name}: {failure.message if failure else self.status}")
        if code == EXIT_TIMED_OUT:
            raise JobTimeoutError(f"{self.name} is {self.status}, not {event}")
        return self

    def logs(self, *, follow: bool = True, all_ranks: bool = False) -> Iterator[str]:
        """Yields the lines of the log. `follow` waits for the pod and goes on with the next
        attempt until the job ends.
        """
        words = [self.name, *(["-f"] if follow else []), *(["--all-ranks"] if all_ranks else [])]
        out = _Lines()
        world = _world(self._cluster, cast("TextIO", out))
        failed: list[BaseException] = []

        def read() -> None:
            try:
                logs.run(_options("logs", words), world)
            except BaseException as error:
                failed.append(error)
            finally:
                out.end()

        threading.Thread(target=read, daemon=True).start()
        yield from out.lines()
        if failed:
            raise failed[0]

    def cancel(self) -> None:
        self._change("cancel")

    def suspend(self) -> None:
        self._change("suspend")

    def resume(self) -> None:
        self._change("resume")

    @property
    def succeeded(self) -> bool:
        return self.object.status.phase is JobPhase.SUCCEEDED

    def _change(self, verb: str) -> None:
        change.change(self._cluster, verb, self.name)


class _Lines(TextIOBase):
    """A text that one thread writes while another one reads its lines."""

    def __init__(self) -> None:
        super().__init__()
        self._queue: queue.Queue[str | None] = queue.Queue()
        self._begun = ""

    def write(self, text: str, /) -> int:
        *whole, self._begun = (self._begun + text).split("\n")
        for line in whole:
            self._queue.put(line)
        return len(text)

    def end(self) -> None:
        self._queue.put(None)

    def lines(self) -> Iterator[str]:
        while (line := self._queue.get()) is not None:
            yield line


def _options(verb: str, words: Sequence[str]) -> argparse.Namespace:
    found = verb_named(verb)
    try:
        return parser_of(found, module_of(found)).parse_args(words)
    except SystemExit:
        # argparse has printed the reason.
        raise UsageError(f"{verb}: wrong arguments: {' '.join(words)}") from None


def _world(cluster: Cluster, out: TextIO) -> World:
    """Remarks are dropped: what matters is returned or raised."""
    screen = Screen(out, StringIO())
    return World(screen, lambda _: cluster, lambda: datetime.now(UTC), time.sleep)
