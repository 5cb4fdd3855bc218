"""A small worker for fault tests: it speaks the worker's contract without torch.

It makes steps until the gate file appears; then it ends with 0. It starts after the step in its
checkpoint directory, reports through the worker package's own reporter, and on SIGTERM keeps a
checkpoint and exits with 143; of a gang only rank 0 keeps any. Faults are given per attempt:
`--fault 1=exit:7`. It takes as many MiB of memory as the file beside the gate, GATE.take, says.
"""

import argparse
import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from gpujob_api.report import CheckpointReport, Failure, FailureClass, Report, Timing, WorkerPhase
from gpujob_worker.run.environment import read_environment
from gpujob_worker.run.reporter import Destination, Reporter, write_termination_message

STEP_SECONDS = 0.02
LATE_STEP = 20
SAVE_STEPS = 10


class Worker:
    def __init__(self, gate: Path, fault: str) -> None:
        self.environment = read_environment(os.environ)
        self.gate = gate
        self.fault, _, self.value = fault.partition(":")
        self.stopping = False
        self.taken = bytearray()
        directory = self.environment.checkpoint_directory
        assert directory is not None
        directory.mkdir(parents=True, exist_ok=True)
        self.file = directory / "step"
        saved = int(self.file.read_text()) if self.file.exists() else None
        self.first = self.step = saved or 0
        checkpoint = None if saved is None else CheckpointReport(saved)
        self.report = Report(
            attempt=self.environment.attempt,
            rank=self.environment.rank,
            phase=WorkerPhase.STARTING,
            resumed_from_step=saved,
            checkpoint=checkpoint,
        )

    def snapshot(self) -> Report:
        self.report = replace(self.report, sequence=self.report.sequence + 1, step=self.step)
        return self.report

    def save(self) -> None:
        if self.environment.rank > 0:
            return
        temporary = self.file.with_suffix(".new")
        temporary.write_text(str(self.step))
        os.replace(temporary, self.file)
        self.report = replace(self.report, checkpoint=CheckpointReport(self.step))

    def take_memory(self) -> None:
        file = self.gate.with_suffix(".take")
        if not self.taken and file.exists():
            # A byte other than 0 writes every page, so that the memory is really in use.
            self.taken = bytearray(b"\x01") * (int(file.read_text()) * 1024**2)

    def early_faults(self) -> None:
        if self.fault == "exit":
            self.end(int(self.value))
        if self.fault == "user-error":
            self.fail(FailureClass.USER_ERROR, "NameError: name 'modle' is not defined")

    def late_faults(self) -> None:
        if self.step - self.first < LATE_STEP:
            return
        if self.fault == "late-exit":
            self.end(int(self.value))
        if self.fault == "late-error":
            self.fail(FailureClass.USER_ERROR, "ValueError: loss is not finite")

    def fail(self, kind: FailureClass, message: str) -> None:
        self.report = replace(self.report, failure=Failure(kind, message))
        self.end(1)

    def end(self, code: int) -> None:
        write_termination_message(self.environment.termination_file, self.snapshot())
        sys.stdout.flush()
        os._exit(code)

    def run(self) -> None:
        signal.signal(signal.SIGTERM, self.on_stop)
        self.early_faults()
        assert self.environment.report_url is not None
        destination = Destination(self.environment.report_url, self.environment.token_file)
        Reporter(destination, self.snapshot, lambda reply: None).start()
        timing = Timing(STEP_SECONDS, 32 * 1024**2)
        self.report = replace(self.report, phase=WorkerPhase.TRAINING, current=timing)
        while not self.gate.exists():
            time.sleep(STEP_SECONDS)
            self.step += 1
            self.take_memory()
            self.late_faults()
            if self.step % SAVE_STEPS == 0:
                self.save()
            if self.stopping:
                self.save()
                self.end(143)
        self.report = replace(self.report, phase=WorkerPhase.FINISHED)
        self.end(0)

    def on_stop(self, number: int, frame: object) -> None:
        self.stopping = self.fault != "ignore-term"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--gate", type=Path, required=True)
    parser.add_argument("--fault", action="append", default=[], help="ATTEMPT=FAULT, * is any")
    arguments = parser.parse_args()
    faults = dict(text.split("=", 1) for text in arguments.fault)
    attempt = os.environ["GPUJOB_ATTEMPT"]
    Worker(arguments.gate, faults.get(attempt, faults.get("*", ""))).run()


main()
