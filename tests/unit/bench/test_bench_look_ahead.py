"""The queues that move pods: by hand on a few GPUs, and within their bounds on a small trace."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench import placement
from bench.openb.cluster import Cluster, simulate
from bench.openb.look_ahead import MOVES_MAX, LookAhead, simulate_queue
from bench.openb.product import Product, RandomTies
from bench.openb.residents import Pod
from bench.openb.trace import Nodes, PodClass, Trace, read_trace
from tests.harness.openb_folder import write_openb_folder

HALF = PodClass(1000, 1024, 1, 500, "")
MOST = PodClass(1000, 1024, 1, 810, "")
WHOLE = PodClass(1000, 1024, 1, 1000, "")
HUNGRY = PodClass(8000, 1024, 0, 0, "")
ALL_CPU = PodClass(9000, 1024, 1, 1000, "")


def one_gpu_nodes(count: int, cpu_milli: int = 16_000) -> Nodes:
    names = tuple(f"n{number}" for number in range(count))
    ones = np.ones(count, dtype=np.int64)
    return Nodes(names, cpu_milli * ones, 65_536 * ones, ones, ("G2",) * count)


def trace_of(nodes: Nodes, pods: Sequence[PodClass]) -> Trace:
    classes = tuple(sorted(set(pods)))
    of_pod = np.array([classes.index(pod) for pod in pods])
    return Trace("hand", nodes, classes, of_pod, {})


def queue_of(nodes: Nodes, pods: Sequence[PodClass], *, exchange: bool = False) -> LookAhead:
    """Everybody arrived; who did not fit waits."""
    trace = trace_of(nodes, pods)
    queue = LookAhead(trace, nodes, exchange=exchange)
    for number, class_number in enumerate(trace.of_pod.tolist()):
        queue.arrive(Pod(number, class_number))
    return queue


def spread(queue: LookAhead, *rows: int) -> None:
    """Puts the running pods on these rows, whatever the rule chose."""
    residents = queue.residents
    running = sorted((pod, row) for row, pods in enumerate(residents.on) for pod in pods)
    left = [(pod, residents.remove(pod, row)) for pod, row in running]
    for pod, place in left:
        residents.put(pod, replace(place, row=rows[pod.number]))


def with_arrival(nodes: Nodes, before: Sequence[PodClass], last: PodClass, *rows: int) -> LookAhead:
    """A queue whose running pods are on these rows when the last pod comes."""
    trace = trace_of(nodes, [*before, last])
    queue = LookAhead(trace, nodes)
    for number, pod in enumerate(before):
        queue.arrive(Pod(number, trace.classes.index(pod)))
    spread(queue, *rows)
    queue.arrive(Pod(len(before), trace.classes.index(last)))
    return queue


def test_a_pod_that_fits_nowhere_waits_and_others_move_together_for_it() -> None:
    queue = with_arrival(one_gpu_nodes(2), [HALF, HALF], WHOLE, 0, 1)
    assert (queue.residents.used_milli, queue.waiting) == (1000, 1)
    queue.look()
    assert (queue.residents.used_milli, queue.waiting) == (2000, 0)
    assert (queue.effort.starts, queue.effort.moves) == (1, 1)


def test_nobody_goes_back_to_the_queue_for_a_move() -> None:
    queue = queue_of(one_gpu_nodes(1), [MOST, WHOLE])
    queue.look()
    assert (queue.residents.used_milli, queue.waiting) == (810, 1)
    assert queue.effort.moves == queue.effort.returned == 0


def test_an_exchange_sends_the_smaller_one_back_and_counts_it() -> None:
    queue = queue_of(one_gpu_nodes(1), [MOST, WHOLE], exchange=True)
    queue.look()
    assert (queue.residents.used_milli, queue.waiting, queue.effort.returned) == (1000, 1, 1)
    queue.look()
    assert (queue.residents.used_milli, queue.waiting, queue.effort.returned) == (1000, 1, 1)


def test_work_without_gpus_moves_off_the_processor_of_an_idle_gpu() -> None:
    """Processor is short where the GPU is idle, and in plenty where the GPU is in use."""
    queue = with_arrival(one_gpu_nodes(2), [HUNGRY, WHOLE], ALL_CPU, 0, 1)
    assert (queue.residents.used_milli, queue.waiting) == (1000, 1)
    queue.look()
    assert (queue.residents.used_milli, queue.waiting) == (2000, 0)
    assert queue.effort.moves == 1


def test_who_has_moved_often_enough_stays() -> None:
    queue = queue_of(one_gpu_nodes(1), [MOST, WHOLE], exchange=True)
    for pods in queue.residents.on:
        for pod in pods:
            queue.moved[pod] = MOVES_MAX
    queue.look()
    assert (queue.residents.used_milli, queue.effort.returned) == (810, 0)


@pytest.fixture
def trace(tmp_path: Path) -> Trace:
    write_openb_folder(tmp_path)
    return read_trace(tmp_path, "tiny")


@pytest.mark.parametrize("exchange", [False, True])
@pytest.mark.parametrize("seed", [42, 43])
def test_a_queue_reaches_at_least_what_the_rule_does_alone(
    trace: Trace, seed: int, exchange: bool
) -> None:
    """And everybody is either on a node or waits, with what the cluster holds in step."""
    arrivals = trace.arrivals(seed)
    queue = LookAhead(trace, arrivals.nodes, exchange=exchange)
    run = simulate_queue(arrivals, queue)
    alone = simulate(arrivals, trace.classes, Product(trace, arrivals.nodes))
    ends = [one.allocation_percent[~np.isnan(one.allocation_percent)][-1] for one in (run, alone)]
    assert ends[0] >= ends[1]
    residents = queue.residents
    running = [pod for pods in residents.on for pod in pods]
    assert len(running) + queue.waiting == len(arrivals.pod_class)
    assert len(set(running)) == len(running)
    used = sum(residents.asks(pod).demand_milli for pod in running)
    assert used == residents.used_milli == 10_000 - int(residents.cluster.gpu_total.sum())
    assert max(queue.moved.values(), default=0) <= MOVES_MAX


def test_ties_by_lot_differ_by_seed_and_only_among_ties(trace: Trace) -> None:
    nodes = one_gpu_nodes(8)
    wanted = trace_of(nodes, [WHOLE] * 8)
    rows: list[list[int]] = []
    for seed in (1, 2, 1):
        policy = RandomTies(wanted, nodes, seed)
        cluster = Cluster.empty(nodes)
        placed = [policy.place(cluster, 0) for _ in range(8)]
        rows.append([place[0] for place in placed if place is not None])
    assert sorted(rows[0]) == sorted(rows[1]) == list(range(8))
    assert rows[0] != rows[1]
    assert rows[0] == rows[2]


def test_the_queues_rows_are_named_apart_and_never_a_gain(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_openb_folder(tmp_path)
    policies = ",".join([placement.LOOK_AHEAD, placement.EXCHANGE, placement.RANDOM_TIES])
    placement.main(["--data", str(tmp_path), "--seeds", "42", "--policies", policies])
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert {row["policy"] for row in last["results"]} == set(policies.split(","))
    assert {row["source"] for row in last["results"]} == {"ours"}
    assert [set(gain) for gain in last["gain_points"]] == [{"trace", "against"}]
    efforts = {row["policy"]: row for row in last["queue_effort"]}
    assert set(efforts) == {placement.LOOK_AHEAD, placement.EXCHANGE}
    assert efforts[placement.LOOK_AHEAD]["sent_back"] == 0
