"""Why there and not elsewhere: scores of the rule itself, the next best, and what others lack."""

from dataclasses import fields
from typing import Any

import pytest

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob, JobPhase, SharingMode, SpotPolicy
from gpujob_api.quantities import GIB
from gpujob_operator.decide.cache.scheduler_cache import SchedulerCache
from gpujob_operator.decide.explain.placement_explanation import (
    PlacementExplanation,
    explain_placement,
)
from gpujob_operator.decide.explain.words import LACKS_SHOWN, rows
from gpujob_operator.decide.model.plan import WriteStatus
from gpujob_operator.decide.model.snapshot import Snapshot, SpotPool
from gpujob_operator.decide.packing import select
from gpujob_operator.decide.packing.request import Request, Selection
from gpujob_operator.decide.placement.assumed import AssumedCapacity
from gpujob_operator.decide.planner import plan
from tests.harness.builders import (
    after,
    make_gpu,
    make_gpu_node,
    make_job,
    make_node,
    make_pods,
    make_snapshot,
    measured,
    reserve,
    running,
    statuses,
    with_status,
)

NOW = after(10)


def small(name: str = "new", gigabytes: int = 4, **fields: Any) -> GPUJob:
    """Known to need so much at 20 %."""
    return with_status(make_job(name, **fields), measurement=measured(gigabytes * GIB))


def holding(name: str, node: str, gpu: str, gigabytes: int) -> GPUJob:
    job = running(make_job(name), (node, (gpu,)), held=reserve(gigabytes * GIB))
    return with_status(job, measurement=measured(gigabytes * GIB))


def picture(*jobs: GPUJob, **fields: Any) -> Snapshot:
    """n0: 10 of 24 GiB are held; n1 idle; n2: 22 held; n3 closed for new jobs."""
    held = [holding("a", "n0", "GPU-0", 10), holding("b", "n2", "GPU-2", 22)]
    nodes = [
        make_gpu_node("n0", make_gpu("GPU-0")),
        make_gpu_node("n1", make_gpu("GPU-1")),
        make_gpu_node("n2", make_gpu("GPU-2")),
        make_gpu_node("n3", make_gpu("GPU-3"), unschedulable=True),
    ]
    pods = [pod for job in held for pod in make_pods(job)]
    return make_snapshot(*jobs, *held, pods=pods, gpu_nodes=nodes, **fields)


def nodes_of(found: PlacementExplanation) -> list[str]:
    return [one.placement.workers[0].node for one in found.best]


def text(found: PlacementExplanation) -> str:
    return "\n".join(f"{label}: {value}" for label, value in rows(found))


def test_the_decision_is_the_cycles_own_and_comes_first() -> None:
    snapshot = picture(small())
    found = explain_placement(snapshot, NOW, "uid-new")
    assert found.chosen is not None
    assert found.chosen.placement == statuses(plan(snapshot, NOW).items)["new"].placement
    assert found.decided_here
    assert found.rank == 0
    assert nodes_of(found) == ["n0", "n1"]
    assert set(found.lacks) == {"n2", "n3"}


def test_scores_are_those_that_the_rule_compares() -> None:
    """Asked of `select.choose` on the cycle's own board, for everybody and for n1 alone."""
    snapshot = picture(small())
    found = explain_placement(snapshot, NOW, "uid-new")
    memory = SchedulerCache()
    memory.update(snapshot, NOW)
    asked: list[Selection] = []
    real = select.choose

    def spy(*arguments: Any) -> Any:
        answer = real(*arguments)
        if isinstance(answer, Selection):
            asked.append(answer)
        return answer

    assumed = AssumedCapacity.of(memory.capacity, memory.mix)
    requirements = memory.requirements("uid-new")
    model = "NVIDIA A10"
    wanted = requirements.reservation(
        model, memory.capacity.largest_bytes(model), snapshot.configuration
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(select, "choose", spy)
        request = Request(requirements.demand(model, wanted), utilization_limit_percent=95.0)
        assert assumed.choose(request) is not None
    score = found.best[0].scores[0]
    assert score is not None
    assert score.total == pytest.approx(asked[0].score.total)
    terms = [getattr(score, one.name) for one in fields(score) if one.name != "total"]
    assert score.total == pytest.approx(sum(terms))
    second = found.best[1].scores[0]
    assert second is not None
    assert second.total > score.total


def test_what_a_node_lacks_is_told_with_the_numbers() -> None:
    found = explain_placement(picture(small()), NOW, "uid-new")
    # 22 of 24 GiB are held; 4 GiB and a tenth are needed.
    assert "1 too full; closest: GPU-2 on n2 (2 GiB of 24" in found.lacks["n2"].text
    assert "2.4 GiB short" in found.lacks["n2"].text
    assert found.lacks["n3"].text == "of 1 GPUs: 1 the node is cordoned"


@pytest.mark.parametrize(
    ("node", "lack"),
    [
        ({"cpu_milli_free": 400}, "short of 600 milli-CPU"),
        ({"memory_bytes_free": GIB // 2}, "short of 512 MiB host memory"),
        ({"ready": False}, "the node is not ready"),
    ],
)
def test_each_resource_that_is_short_is_named(node: dict[str, Any], lack: str) -> None:
    views = [make_node(f"n{n}", **(node if n == 1 else {})) for n in range(4)]
    found = explain_placement(picture(small(), nodes=views), NOW, "uid-new")
    assert lack in found.lacks["n1"].text
    assert nodes_of(found) == ["n0"]


def test_the_words_carry_cost_terms_and_differences() -> None:
    found = text(explain_placement(picture(small()), NOW, "uid-new"))
    assert "Needs: 1 x 4.4 GiB at 20 % (Measured), 1000 milli-CPU, 1 GiB each" in found
    assert "Placed: n0 (GPU-0), costs " in found
    assert "of a GPU (worth " in found
    assert "Because: it costs future jobs the least" in found
    assert "Next best 1: n1 (GPU-1), costs " in found
    assert "of a GPU more" in found
    assert "Lacks: n3: of 1 GPUs: 1 the node is cordoned" in found


def test_equal_costs_are_decided_by_the_price_and_then_by_the_order() -> None:
    def of(*prices: float | None) -> str:
        gpu_nodes = [
            make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}"), price=price)
            for n, price in enumerate(prices)
        ]
        return text(explain_placement(make_snapshot(small(), gpu_nodes=gpu_nodes), NOW, "uid-new"))

    assert "Placed: n1" in of(3.0, 2.0)
    assert "; 3.00 an hour instead of 2.00" in of(3.0, 2.0)
    assert "; no price an hour instead of 2.00" in of(None, 2.0)
    assert "then the order of nodes decides" in of(2.0, 2.0)


def test_equal_prices_are_decided_by_how_often_such_a_node_is_taken_away() -> None:
    gpu_nodes = [make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}")) for n in range(2)]
    nodes = [
        make_node(f"n{n}", spot=True, labels={"topology.kubernetes.io/zone": zone})
        for n, zone in enumerate(("risky", "calm"))
    ]
    pools = (SpotPool("-/risky", 1000, 500), SpotPool("-/calm", 1000, 1))
    seen = make_snapshot(small(), gpu_nodes=gpu_nodes, nodes=nodes, spot_pools=pools)
    found = explain_placement(seen, NOW, "uid-new")
    assert nodes_of(found) == ["n1", "n0"]
    assert "; reclaimed 0.49 times an hour instead of 0.002" in text(found)


def test_spot_comes_first_where_it_is_preferred() -> None:
    gpu_nodes = [make_gpu_node(f"n{n}", make_gpu(f"GPU-{n}")) for n in range(2)]
    nodes = [make_node("n0"), make_node("n1", spot=True)]
    job = small(spot=SpotPolicy.PREFER)
    found = explain_placement(make_snapshot(job, gpu_nodes=gpu_nodes, nodes=nodes), NOW, "uid-new")
    assert nodes_of(found) == ["n1", "n0"]
    assert "not spot, which the job prefers" in text(found)


def test_jobs_that_the_same_cycle_places_before_it_are_in_its_way() -> None:
    """The first takes the last idle GPU as a whole, so that the second has only n0."""
    first = make_job("first", sharing=SharingMode.EXCLUSIVE, priority=5)
    snapshot = picture(small(), first)
    found = explain_placement(snapshot, NOW, "uid-new")
    assert found.before == 1
    assert nodes_of(found) == ["n0"]
    assert "allocated exclusively to another job" in found.lacks["n1"].text
    assert "after 1 job" in text(found) or "it fits nowhere else" in text(found)
    assert explain_placement(snapshot, NOW, "uid-first").before == 0


def test_a_job_in_its_place_is_explained_as_if_it_were_placed_now() -> None:
    """Its own pods, processes and requests are not in its way."""
    job = with_status(
        running(small("here"), ("n1", ("GPU-1",)), held=reserve(5 * GIB)), observed_at=NOW
    )
    pods = make_pods(job)
    nodes = [make_gpu_node("n1", make_gpu("GPU-1", ours=[(pods[0].uid, 4 * GIB)]))]
    view = make_node("n1", cpu=1, cpu_milli_free=0)
    found = explain_placement(
        make_snapshot(job, pods=pods, gpu_nodes=nodes, nodes=[view]), NOW, "uid-here"
    )
    assert not found.decided_here
    assert found.chosen is not None
    assert found.chosen.placement == job.status.placement
    assert found.rank == 0
    assert found.chosen.scores[0] is not None
    assert "Because: it fits nowhere else" in text(found)


def test_a_place_that_would_not_be_chosen_now_is_told() -> None:
    job = running(small("here"), ("n1", ("GPU-1",)), held=reserve(5 * GIB))
    found = explain_placement(picture(job), NOW, "uid-here")
    assert nodes_of(found)[0] == "n0"
    assert found.rank == 1
    assert "another place would be better now" in text(found)
    assert "Better now: n0 (GPU-0)" in text(found)
    assert "of a GPU less" in text(found)
    assert "Next best" not in text(found)


def test_a_job_without_a_place_is_told_why_and_what_every_node_lacks() -> None:
    found = explain_placement(picture(small(gigabytes=20, models=("H100",))), NOW, "uid-new")
    assert (found.chosen, found.best) == (None, ())
    assert "no GPU of model H100" in found.refusal
    assert found.lacks["n0"].text == "no GPU of a model that the job accepts, only NVIDIA A10"
    assert len(found.lacks) == 4
    assert "Does not fit: no GPU of model H100" in text(found)


def test_a_gang_goes_close_together_and_costs_are_not_told() -> None:
    gpu_nodes = [
        make_gpu_node("n0", make_gpu("GPU-0")),
        make_gpu_node("n1", *(make_gpu(f"GPU-1{k}", index=k) for k in range(2))),
        make_gpu_node("n2", make_gpu("GPU-2")),
    ]
    gang = make_job("gang", workers=2, sharing=SharingMode.EXCLUSIVE)
    snapshot = make_snapshot(gang, gpu_nodes=gpu_nodes)
    found = explain_placement(snapshot, NOW, "uid-gang")
    assert found.chosen is not None
    decided = next(i for i in plan(snapshot, NOW).items if isinstance(i, WriteStatus))
    assert found.chosen.placement == decided.status.placement
    assert len(found.chosen.scores) == 2
    assert "costs " not in text(found).split("Because")[0]


def test_many_nodes_without_room_are_counted() -> None:
    full = [make_gpu_node(f"n{n:02}", make_gpu(f"GPU-{n}", total=GIB)) for n in range(30)]
    found = rows(explain_placement(make_snapshot(small(), gpu_nodes=full), NOW, "uid-new"))
    without = [value for label, value in found if label == "Lacks"]
    assert len(without) == LACKS_SHOWN + 1
    assert without[-1].startswith(f"{30 - LACKS_SHOWN} more nodes: {30 - LACKS_SHOWN} x ")


@pytest.mark.parametrize(
    ("job", "problem"),
    [
        (small("other"), "no job with UID uid-new"),
        (with_status(small(), phase=JobPhase.SUCCEEDED), "new has ended"),
    ],
)
def test_who_has_no_place_to_explain_is_told(job: GPUJob, problem: str) -> None:
    with pytest.raises(FieldError, match=problem):
        explain_placement(picture(job), NOW, "uid-new")
