"""The real batcher, its thread and a real model, under requests that do not wait for answers."""

import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch

from bench.batching.backends import WIDTH, Free, Metered
from bench.batching.virtual import poisson
from gpujob_api.serving import Batching, BatchingPolicy, Objective
from gpujob_worker.serving.backend import Backend, Tensors
from gpujob_worker.serving.batcher import Batcher, Overloaded

ANSWER_SECONDS_MAX = 60.0
OVERHEAD_WINDOW = 64


@dataclass(slots=True)
class Load:
    """What an open loop of requests saw. Latencies are from the call of `submit`; how late the
    generator itself was is kept beside them."""

    sent: int = 0
    refused: int = 0
    failed: int = 0
    latencies: list[float] = field(default_factory=list[float])
    late_sends: list[float] = field(default_factory=list[float])


def send(batcher: Batcher, moments: Sequence[float], inputs: Tensors) -> Load:
    """Sends one sample at each moment, and waits for all answers."""
    load = Load(sent=len(moments))
    lock = threading.Lock()
    futures: list[Future[Tensors]] = []
    start = time.monotonic() + 0.05

    def keep(sent: float, future: Future[Tensors]) -> None:
        taken = time.monotonic() - sent
        with lock:
            if future.exception() is None:
                load.latencies.append(taken)
            else:
                load.failed += 1

    for moment in moments:
        left = start + moment - time.monotonic()
        if left > 0:
            time.sleep(left)
        now = time.monotonic()
        load.late_sends.append(max(0.0, now - start - moment))
        try:
            future = batcher.submit(inputs, 1)
        except Overloaded:
            load.refused += 1
            continue
        future.add_done_callback(lambda ended, sent=now: keep(sent, ended))
        futures.append(future)
    for future in futures:
        future.exception(ANSWER_SECONDS_MAX)
    return load


def started(
    backend: Backend, objective: Objective, policy: BatchingPolicy, inputs: Tensors
) -> Batcher:
    batcher = Batcher(backend, objective, Batching(policy))
    batcher.warm_up(inputs, seconds=2.0)
    batcher.start()
    return batcher


def median_milliseconds(backend: Backend, inputs: Tensors, runs: int = 30) -> float:
    taken: list[float] = []
    for _ in range(runs):
        begin = time.monotonic()
        backend.run(inputs)
        taken.append(time.monotonic() - begin)
    return 1000 * sorted(taken)[runs // 2]


def compare(
    backend: Backend,
    objective: Objective,
    rate: float,
    seconds: float,
    rounds: int,
    cost: str,
    inputs: Tensors,
) -> list[dict[str, Any]]:
    """One row a policy. They take turns, in rounds of the same arrivals of one sample each. `cost`
    is the column that is compared."""
    policies = (BatchingPolicy.OFF, BatchingPolicy.IMMEDIATE, BatchingPolicy.DEADLINE)
    meters = {policy: Metered(backend) for policy in policies}
    batchers = {policy: started(meters[policy], objective, policy, inputs) for policy in policies}
    for meter in meters.values():
        meter.seconds = meter.processor_seconds = 0.0
        meter.batches = meter.samples = 0
    loads: dict[BatchingPolicy, list[Load]] = {policy: [] for policy in policies}
    for number in range(rounds):
        moments = poisson(rate, int(rate * seconds), seed=number)
        for policy in policies:
            loads[policy].append(send(batchers[policy], moments, inputs))
    for batcher in batchers.values():
        batcher.close()
    rows = [_row(policy, meters[policy], loads[policy], objective) for policy in policies]
    immediate = next(row for row in rows if row["policy"] == BatchingPolicy.IMMEDIATE.value)
    for row in rows:
        row["backend"], row["rate"] = backend.name, round(rate)
        row["of_immediate"] = row[cost] / immediate[cost]
    return rows


def _row(
    policy: BatchingPolicy, meter: Metered, loads: Sequence[Load], objective: Objective
) -> dict[str, Any]:
    latencies = sorted(value for load in loads for value in load.latencies)
    sent = sum(load.sent for load in loads)
    within = sum(1000 * value <= objective.latency_milliseconds for value in latencies)
    late = sorted(value for load in loads for value in load.late_sends)
    return {
        "policy": policy.value,
        "processor_ms": 1000 * meter.processor_seconds / max(1, len(latencies)),
        "clock_ms": 1000 * meter.seconds / max(1, len(latencies)),
        "batch": meter.samples / max(1, meter.batches),
        "p50_ms": 1000 * latencies[len(latencies) // 2],
        "p99_ms": 1000 * latencies[int(0.99 * len(latencies))],
        "within_percent": 100 * within / sent,
        "refused": sum(load.refused for load in loads),
        "generator_late_p99_ms": 1000 * late[int(0.99 * len(late))],
    }


def overhead(count: int) -> list[dict[str, Any]]:
    """What a request costs with a device without cost: one caller with 64 requests at a time, and
    one with a single request."""
    rows: list[dict[str, Any]] = []
    for together, policy in (
        (OVERHEAD_WINDOW, BatchingPolicy.IMMEDIATE),
        (OVERHEAD_WINDOW, BatchingPolicy.DEADLINE),
        (1, BatchingPolicy.IMMEDIATE),
    ):
        batcher = Batcher(Free(), Objective(50), Batching(policy, max_size=OVERHEAD_WINDOW))
        batcher.start()
        inputs = {"x": torch.randn(1, WIDTH)}
        taken = [_ask(batcher, inputs, together) for _ in range(count // together)]
        batcher.close()
        clock = sorted(clock for clock, _ in taken)
        processor = sum(processor for _, processor in taken)
        rows.append(
            {
                "policy": policy.value,
                "at_a_time": together,
                "requests": len(taken) * together,
                "clock_us": 1e6 * clock[len(clock) // 2] / together,
                "processor_us": 1e6 * processor / len(taken) / together,
            }
        )
    return rows


def _ask(batcher: Batcher, inputs: Tensors, together: int) -> tuple[float, float]:
    begin, processor = time.monotonic(), time.process_time()
    futures = [batcher.submit(inputs, 1) for _ in range(together)]
    for future in futures:
        future.result(ANSWER_SECONDS_MAX)
    return time.monotonic() - begin, time.process_time() - processor
