"""Which GPUs a job gets, all workers or none, and what it is told when it gets none."""

import re
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from gpujob_api.gpujob import GPUJob, ReservationSource, SharingMode, SpotPolicy
from gpujob_api.quantities import GIB, MIB
from gpujob_operator.decide.capacity.slowdown_law import summed_utilization_limit_percent
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import Snapshot, Taint
from gpujob_operator.decide.packing.demand import WorkloadMix
from gpujob_operator.decide.placement.assign import Assignment, assign
from gpujob_operator.decide.placement.assumed import AssumedCapacity
from gpujob_operator.decide.placement.diagnosis import Diagnosis
from gpujob_operator.decide.placement.requirements import UNKNOWN_BYTES, demand_of, requirements_of
from tests.harness.builders import (
    CARD_BYTES,
    T0,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_snapshot,
    make_template,
    measured,
    reserve,
    running,
    with_status,
)
from tests.harness.capacity import build_capacity

CONFIGURATION = Configuration()


def result(job: GPUJob, snapshot: Snapshot, claimed: tuple[str, ...] = ()) -> Any:
    capacity = build_capacity(snapshot, T0, {})
    jobs = (*snapshot.jobs, job)
    demands = [demand_of(requirements_of(j, None), capacity, CONFIGURATION) for j in jobs]
    assumed = AssumedCapacity.of(capacity, WorkloadMix.of(Counter(demands)))
    assumed.nominate(("n0", uuid) for uuid in claimed)
    return assign(requirements_of(job, None), assumed, CONFIGURATION)


def gpus_of(job: GPUJob, snapshot: Snapshot, claimed: tuple[str, ...] = ()) -> list[str]:
    found = result(job, snapshot, claimed)
    assert isinstance(found, Assignment), found
    return [uuid for worker in found.placement.workers for uuid in worker.gpus]


def why(job: GPUJob, snapshot: Snapshot, claimed: tuple[str, ...] = ()) -> Diagnosis:
    found = result(job, snapshot, claimed)
    assert isinstance(found, Diagnosis), found
    return found


def sized(memory_bytes: int, name: str = "job", **options: Any) -> GPUJob:
    """A job that was measured to use this much."""
    return with_status(make_job(name, **options), measurement=measured(memory_bytes))


def of(name: str, held: int, uuid: str = "GPU-0", utilization_percent: float = 20.0) -> GPUJob:
    kept = reserve(held, utilization_percent=utilization_percent)
    return running(make_job(name), ("n0", (uuid,)), held=kept)


def gpus(count: int) -> list[Any]:
    return [make_gpu(f"GPU-{n}", index=n) for n in range(count)]


@pytest.mark.promise("I1")
@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_n_jobs_of_exactly_m_bytes_on_a_gpu_one_byte_short(count: int) -> None:
    """I1: exactly one of them does not run, and it is told how much is missing."""
    each = 2 * GIB
    gpu = make_gpu(total=count * each - 1)
    shared: dict[str, Any] = {
        "sharing": SharingMode.SHARED,
        "memory_bytes": each,
        "max_slowdown_percent": 100,
    }
    held = reserve(each, ReservationSource.HINT, 0.0)
    jobs: list[GPUJob] = []
    for n in range(count):
        found = result(make_job(f"j{n}", **shared), make_snapshot(*jobs, gpus=[gpu]))
        if isinstance(found, Diagnosis):
            break
        jobs.append(running(make_job(f"j{n}", **shared), held=held))
    assert len(jobs) == count - 1
    message = why(make_job("last", **shared), make_snapshot(*jobs, gpus=[gpu])).message
    assert "1 B short" in message or "1 too small" in message


def test_a_job_without_measurement_starts_alone_and_holds_all_that_is_free() -> None:
    """I1: unknown use may be all of it, less the driver and unmanaged processes."""
    found = result(make_job(), make_snapshot(gpus=[make_gpu(driver=GIB, unmanaged=GIB)]))
    assert found.reservation.memory_bytes == CARD_BYTES - 2 * GIB
    assert found.reservation.source is ReservationSource.WHOLE_GPU
    assert "needs an idle GPU" in why(make_job(), make_snapshot(of("a", GIB))).message


def test_measured_jobs_join_others_where_somebody_may_need_a_whole_gpu() -> None:
    jobs = [of("a", 6 * GIB, "GPU-1"), of("b", 12 * GIB, "GPU-2"), of("c", 22 * GIB, "GPU-3")]
    unmeasured = [make_job(f"new-{n}") for n in range(3)]
    chosen = gpus_of(sized(4 * GIB), make_snapshot(*jobs, *unmeasured, gpus=gpus(4)))
    assert chosen in (["GPU-1"], ["GPU-2"])


def test_an_unmeasured_job_takes_an_empty_gpu() -> None:
    seen = make_snapshot(of("a", GIB), gpus=gpus(2))
    assert gpus_of(make_job(), seen) == ["GPU-1"]


def test_an_unknown_job_does_not_start_where_unmanaged_processes_left_next_to_nothing() -> None:
    full = make_gpu(unmanaged=CARD_BYTES - UNKNOWN_BYTES + MIB)
    assert "255 MiB of 24 GiB free" in why(make_job(), make_snapshot(gpus=[full])).message
    room = make_gpu(unmanaged=CARD_BYTES - UNKNOWN_BYTES)
    assert gpus_of(make_job(), make_snapshot(gpus=[room])) == ["GPU-0"]


@pytest.mark.promise("I2")
def test_exclusive_jobs_share_with_nobody() -> None:
    """I2: neither with jobs nor with unmanaged processes, and nobody joins them."""
    alone = make_job(sharing=SharingMode.EXCLUSIVE)
    found = result(alone, make_snapshot())
    assert found.reservation.exclusive
    assert "already shared" in why(alone, make_snapshot(of("a", GIB))).message
    unmanaged = make_snapshot(gpus=[make_gpu(unmanaged=GIB)])
    assert "used by unmanaged processes (1 GiB)" in why(alone, unmanaged).message
    taken = running(make_job("x"), held=reserve(GIB, exclusive=True))
    assert "allocated exclusively" in why(sized(GIB), make_snapshot(taken)).message


def test_a_whole_gpu_is_not_shared_before_it_is_measured() -> None:
    """I1."""
    assert "allocated exclusively" in why(sized(GIB), make_snapshot(running(make_job("x")))).message


def test_gangs_are_placed_whole_or_not_at_all() -> None:
    """I1, I4: two of three GPUs are no start."""
    gang = make_job(workers=3)
    message = why(gang, make_snapshot(gpus=gpus(2))).message
    assert message.startswith("needs 3 x a whole GPU (capacity for 2 of 3 workers); of 2 GPUs")
    assert gpus_of(gang, make_snapshot(gpus=gpus(3))) == ["GPU-0", "GPU-1", "GPU-2"]


def test_workers_of_a_gang_do_not_share_what_only_one_can_have() -> None:
    """I1: the trial ledger counts the earlier ranks."""
    cores = make_job(workers=2, template=make_template(cpu="3"))
    assert (
        "short of 1000 milli-CPU"
        in why(cores, make_snapshot(gpus=gpus(2), nodes=[make_node(cpu=5)])).message
    )


def test_a_gang_is_on_one_model() -> None:
    mixed = [make_gpu("GPU-0"), make_gpu("GPU-1", model="NVIDIA L4", index=1)]
    assert why(make_job(workers=2), make_snapshot(gpus=mixed)).could_ever_fit is False
    mixed.append(make_gpu("GPU-2", model="NVIDIA L4", index=2))
    assert gpus_of(make_job(workers=2), make_snapshot(gpus=mixed)) == ["GPU-1", "GPU-2"]


def test_gpus_of_one_worker_are_on_one_node() -> None:
    nodes = [make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}")) for n in range(2)]
    refusal = why(make_job(gpus_per_worker=2), make_snapshot(gpu_nodes=nodes))
    assert refusal.could_ever_fit is False
    assert "2 free, but too few on one node" in refusal.message
    assert len(gpus_of(make_job(gpus_per_worker=2), make_snapshot(gpus=gpus(2)))) == 2


def test_a_gang_holds_what_its_smallest_gpu_has() -> None:
    """I1: one reservation is valid for every GPU."""
    seen = make_snapshot(gpus=[make_gpu("GPU-0"), make_gpu("GPU-1", driver=GIB, index=1)])
    assert result(make_job(gpus_per_worker=2), seen).reservation.memory_bytes == CARD_BYTES - GIB


@pytest.mark.parametrize(
    ("policy", "node"),
    [(SpotPolicy.PREFER, "s"), (SpotPolicy.REQUIRE, "s"), (SpotPolicy.NEVER, "d")],
)
def test_spot_policy(policy: SpotPolicy, node: str) -> None:
    gpu_nodes = [make_gpu_node("d", make_gpu("GPU-d")), make_gpu_node("s", make_gpu("GPU-s"))]
    nodes = [make_node("d"), make_node("s", spot=True)]
    found = result(make_job(spot=policy), make_snapshot(gpu_nodes=gpu_nodes, nodes=nodes))
    assert found.placement.workers[0].node == node
    assert found.placement.spot is (node == "s")


def test_spot_required_or_refused_says_so() -> None:
    assert "1 not a spot node" in why(make_job(spot=SpotPolicy.REQUIRE), make_snapshot()).message
    spot = make_snapshot(nodes=[make_node(spot=True)])
    assert "1 a spot node" in why(make_job(spot=SpotPolicy.NEVER), spot).message
    assert gpus_of(make_job(), make_snapshot()) == ["GPU-0"]


def in_zone(zone: str) -> dict[str, Any]:
    """A template's affinity to nodes in this zone."""
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": [zone]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"affinity": {"nodeAffinity": required}}


@pytest.mark.parametrize(
    ("template", "node", "finding"),
    [
        (
            {"nodeSelector": {"zone": "a"}},
            {"labels": {"zone": "b"}},
            "nodeSelector zone=a does not match",
        ),
        ({"nodeSelector": {"zone": "a"}}, {"labels": {"zone": "a"}}, None),
        (in_zone("a"), {"labels": {"zone": "b"}}, "nodeAffinity zone In (a) does not match"),
        (in_zone("a"), {"labels": {"zone": "a"}}, None),
        ({}, {"taints": (Taint("x", "NoSchedule"),)}, "taint x is not tolerated"),
        ({}, {"taints": (Taint("x", "PreferNoSchedule"),)}, None),
        ({}, {"taints": (Taint("nvidia.com/gpu", "NoSchedule", "true"),)}, None),
        ({"tolerations": [{"key": "x", "operator": "Exists"}]},
         {"taints": (Taint("x", "NoExecute", "v"),)}, None),
        ({"tolerations": [{"key": "x", "value": "w"}]},
         {"taints": (Taint("x", "NoSchedule", "v"),)}, "taint x is not tolerated"),
        ({"tolerations": [{"key": "x", "value": "v", "effect": "NoExecute"}]},
         {"taints": (Taint("x", "NoSchedule", "v"),)}, "taint x is not tolerated"),
        ({"tolerations": [{"operator": "Exists"}]}, {"taints": (Taint("x", "NoSchedule"),)}, None),
        ({"tolerations": [{"key": "x", "operator": "Gt", "value": "750"}]},
         {"taints": (Taint("x", "NoSchedule", "800"),)}, None),
        ({"tolerations": [{"key": "x", "operator": "Gt", "value": "800"}]},
         {"taints": (Taint("x", "NoSchedule", "800"),)}, "taint x is not tolerated"),
        ({"tolerations": [{"key": "x", "operator": "Lt", "value": "900"}]},
         {"taints": (Taint("x", "NoSchedule", "800"),)}, None),
        ({"tolerations": [{"key": "x", "operator": "Lt", "value": "900"}]},
         {"taints": (Taint("x", "NoSchedule", "v"),)}, "taint x is not tolerated"),
        ({}, {"ready": False}, "the node is not ready"),
    ],
)  # fmt: skip
def test_selectors_and_taints(
    template: dict[str, Any], node: dict[str, Any], finding: str | None
) -> None:
    found = result(
        make_job(template=make_template(**template)), make_snapshot(nodes=[make_node(**node)])
    )
    assert isinstance(found, Assignment) if finding is None else finding in found.message


def test_host_room_counts() -> None:
    job = make_job(template=make_template(cpu="6", memory="300Gi"))
    refusal = why(job, make_snapshot(nodes=[make_node(cpu=4)]))
    assert "short of 2000 milli-CPU" in refusal.message
    assert refusal.could_ever_fit is False
    big = make_job(template=make_template(memory="300Gi"))
    assert "short of 44 GiB host memory" in why(big, make_snapshot()).message
    busy = make_node(cpu=8, cpu_milli_free=1000)
    assert why(
        make_job(template=make_template(cpu="6")), make_snapshot(nodes=[busy])
    ).could_ever_fit


def test_a_node_takes_no_more_pods_than_it_may_have() -> None:
    """Each worker takes one, those of a gang on one node together."""
    two = gpus(2)
    full = make_snapshot(gpus=two, nodes=[make_node(pods_allocatable=29, pods_free=0)])
    refusal = why(make_job(), full)
    assert "2 on nodes that take no more pods" in refusal.message
    assert refusal.could_ever_fit
    one_left = make_snapshot(gpus=two, nodes=[make_node(pods_allocatable=29, pods_free=1)])
    assert gpus_of(make_job(), one_left) == ["GPU-0"]
    gang = why(make_job(workers=2), one_left)
    assert "(capacity for 1 of 2 workers); of 2 GPUs: 2 on nodes that take no more" in gang.message
    tiny = make_snapshot(gpus=two, nodes=[make_node(pods_allocatable=1, pods_free=1)])
    assert why(make_job(workers=2), tiny).could_ever_fit is False


def test_a_job_that_fits_only_without_its_margin_gets_the_whole_gpu() -> None:
    """I4: measured at nearly a whole GPU, it can still run again after an interruption."""
    found = result(sized(CARD_BYTES - GIB), make_snapshot())
    assert isinstance(found, Assignment)
    assert found.reservation.source is ReservationSource.WHOLE_GPU
    refusal = why(sized(CARD_BYTES + GIB), make_snapshot())
    assert refusal.could_ever_fit is False
    assert "1 too small" in refusal.message


def test_neighbours_that_would_slow_each_other_are_kept_apart() -> None:
    busy = of("a", 4 * GIB, utilization_percent=70.0)
    message = why(sized(GIB), make_snapshot(busy)).message
    assert "1 busy: 90 % in total would slow a job by more than 10 %" in message
    calm = of("a", 4 * GIB, utilization_percent=50.0)
    assert gpus_of(sized(GIB), make_snapshot(calm)) == ["GPU-0"]
    touchy = replace(
        calm, spec=replace(calm.spec, sharing=replace(calm.spec.sharing, max_slowdown_percent=2))
    )
    assert "more than 2 %" in why(sized(GIB), make_snapshot(touchy)).message


def test_the_limit_of_summed_utilization_follows_the_law() -> None:
    limits = [summed_utilization_limit_percent(percent) for percent in range(200)]
    assert limits == sorted(limits)
    rounded = {percent: round(limits[percent]) for percent in (0, 3, 4, 10, 12, 26, 27, 100)}
    assert rounded == {0: 50, 3: 50, 4: 80, 10: 80, 12: 95, 26: 95, 27: 127, 100: 200}


@pytest.mark.promise("I11")
def test_claimed_gpus_are_not_for_later_jobs() -> None:
    """I11."""
    assert gpus_of(make_job(), make_snapshot(gpus=gpus(2)), ("GPU-0",)) == ["GPU-1"]
    refusal = why(make_job(), make_snapshot(), ("GPU-0",))
    assert refusal.could_ever_fit
    assert "1 nominated for an earlier job" in refusal.message


def test_the_cheaper_node_then_the_node_with_fewer_free_gpus() -> None:
    dear, cheap = (
        make_gpu_node("a", make_gpu("GPU-a"), price=3.0),
        make_gpu_node("b", make_gpu("GPU-b"), price=1.0),
    )
    assert gpus_of(make_job(), make_snapshot(gpu_nodes=[dear, cheap])) == ["GPU-b"]
    roomy = make_gpu_node("a", make_gpu("GPU-a"), make_gpu("GPU-x", index=1))
    tight = make_gpu_node("b", make_gpu("GPU-b"))
    assert gpus_of(make_job(), make_snapshot(gpu_nodes=[roomy, tight])) == ["GPU-b"]


@pytest.mark.promise("I4")
def test_messages_carry_the_numbers() -> None:
    """I4: what is asked, what there is, and the nearest fit."""
    jobs = [of("a", 20 * GIB, "GPU-0"), of("b", 22 * GIB, "GPU-1")]
    message = why(sized(6 * GIB), make_snapshot(*jobs, gpus=gpus(2))).message
    assert message == (
        "needs 1 x 6.6 GiB at 20 %; of 2 GPUs: 2 too full; "
        "closest: GPU-0 on n0 (4 GiB of 24 GiB free, 2.6 GiB short)"
    )


@pytest.mark.parametrize("names", [("a10",), ("NVIDIA A10",), ("H100", "nvidia a10"), ()])
def test_a_model_is_accepted_by_some_words_of_its_name(names: tuple[str, ...]) -> None:
    job = make_job(models=names, sharing=SharingMode.EXCLUSIVE)
    assert gpus_of(job, make_snapshot()) == ["GPU-0"]


@pytest.mark.parametrize(
    ("names", "models"),
    [((), set()), (("a10",), {"NVIDIA A10"}), (("H100",), {"H100"})],
)
def test_a_request_in_the_mix_is_of_the_models_of_the_cluster(
    names: tuple[str, ...], models: set[str]
) -> None:
    """A name that means none restricts the request all the same."""
    capacity = build_capacity(make_snapshot(), T0, {})
    found = demand_of(requirements_of(make_job(models=names), None), capacity, CONFIGURATION)
    assert found.models == models


def test_no_gpus_at_all() -> None:
    assert "no node has an agent" in why(make_job(), replace(make_snapshot(), gpu_nodes=())).message
    rebooted = make_gpu_node()
    rebooted = replace(rebooted, status=replace(rebooted.status, gpus=()))
    without = replace(make_snapshot(), gpu_nodes=(rebooted,))
    assert "the agents of 1 node show no GPU" in why(make_job(), without).message
    message = why(make_job(models=("H100",)), make_snapshot()).message
    assert message == "no GPU of model H100; models in the cluster: NVIDIA A10"
    assert why(make_job(models=("a1", "10")), make_snapshot()).message.startswith("no GPU of model")
    assert re.search(r"\d", why(make_job(memory_bytes=40 * GIB), make_snapshot()).message)


# -- gangs


def gang(workers: int, **options: Any) -> GPUJob:
    return make_job("gang", workers=workers, sharing=SharingMode.EXCLUSIVE, **options)


def rack(name: str, *, racks: dict[str, str], **fields: Any) -> Any:
    zone = {"topology.kubernetes.io/zone": racks[name]} if name in racks else {}
    return make_node(name, labels=zone, **fields)


def machines(racks: dict[str, str], gpus: int = 1) -> Snapshot:
    return make_snapshot(
        gpu_nodes=[
            make_gpu_node(n, *(make_gpu(f"GPU-{n}{k}", index=k) for k in range(gpus)))
            for n in racks
        ],
        nodes=[rack(n, racks=racks) for n in racks],
    )


def nodes_of(job: GPUJob, snapshot: Snapshot) -> list[str]:
    found = result(job, snapshot)
    assert isinstance(found, Assignment), found
    return [worker.node for worker in found.placement.workers]


def test_workers_of_a_gang_never_share_a_gpu() -> None:
    """Two small workers would fit on the one GPU; NCCL would refuse to join them."""
    small = sized(GIB, workers=2, max_slowdown_percent=100)
    assert (
        "capacity for 1 of 2 workers"
        in why(small, make_snapshot(of("a", GIB), gpus=gpus(1))).message
    )
    assert sorted(gpus_of(small, make_snapshot(gpus=gpus(2)))) == ["GPU-0", "GPU-1"]


def test_a_gang_stays_on_one_node_where_that_holds_it() -> None:
    seen = make_snapshot(
        gpu_nodes=[
            make_gpu_node(f"n{n}", *(make_gpu(f"GPU-{n}{k}", index=k) for k in range(count)))
            for n, count in enumerate((1, 1, 4, 2))
        ]
    )
    assert nodes_of(gang(2), seen) == ["n3", "n3"]
    assert nodes_of(gang(5), seen) == ["n2", "n2", "n2", "n2", "n0"]


def test_a_gang_stays_in_one_zone_where_that_holds_it() -> None:
    seen = machines({"a": "east", "b": "west", "c": "east", "d": "west", "e": "west"})
    assert nodes_of(gang(3), seen) == ["b", "d", "e"]
    assert len(set(nodes_of(gang(4), seen))) == 4


def test_processor_bounds_the_workers_of_a_node() -> None:
    seen = make_snapshot(
        gpu_nodes=[
            make_gpu_node(f"n{n}", *(make_gpu(f"GPU-{n}{k}", index=k) for k in range(4)))
            for n in range(2)
        ],
        nodes=[make_node("n0", cpu=3), make_node("n1", cpu=3)],
    )
    job = gang(4, template=make_template(cpu="1"))
    assert nodes_of(job, seen) == ["n0", "n0", "n0", "n1"]


def test_a_worker_of_several_gpus_gets_gpus_with_a_link() -> None:
    pairs = [
        replace(make_gpu(f"GPU-{n}", index=n), link_group=group)
        for n, group in enumerate((0, 1, 0, 1))
    ]
    job = gang(2, gpus_per_worker=2)
    assert gpus_of(job, make_snapshot(gpus=pairs)) == ["GPU-0", "GPU-2", "GPU-1", "GPU-3"]
    alone = make_job(sharing=SharingMode.EXCLUSIVE, gpus_per_worker=2)
    assert gpus_of(alone, make_snapshot(gpus=pairs)) == ["GPU-0", "GPU-2"]


def test_a_gang_prefers_spot_where_all_of_it_fits() -> None:
    nodes = [make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}")) for n in range(4)]
    seen = make_snapshot(gpu_nodes=nodes, nodes=[make_node(f"n{n}", spot=n > 1) for n in range(4)])
    assert nodes_of(gang(2), seen) == ["n2", "n3"]
    assert len(nodes_of(gang(3), seen)) == 3
    assert nodes_of(gang(2, spot=SpotPolicy.NEVER), seen) == ["n0", "n1"]
