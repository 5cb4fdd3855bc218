"""Small calm scenes, one for each odd thing that a pod or an object may do."""

from typing import Any

from gpujob_api.quantities import GIB
from gpujob_api.report import FailureClass
from tests.simulation.faults import Faults
from tests.simulation.hostile import FOREIGN_FINALIZER, ODD_MESSAGES
from tests.simulation.operator_shell import Parts
from tests.simulation.result import Result
from tests.simulation.simulation import PlanFunction, Simulation
from tests.simulation.workloads import (
    ANY_END,
    EVERY_ATTEMPT,
    NAMESPACES,
    NodePlan,
    Scenario,
    Submission,
    Workload,
    make_spec,
)

TEAM, OTHER = NAMESPACES
EXCLUSIVE: dict[str, Any] = {"sharing": {"mode": "Exclusive"}}


def run_calm_scene(
    scenario: Scenario,
    seed: int = 1,
    parts: Parts | None = None,
    plan: PlanFunction | None = None,
    faults: Faults | None = None,
) -> Result:
    return Simulation(
        seed,
        scenario=scenario,
        faults=faults or Faults(),
        incidents=[],
        operators=1,
        parts=parts,
        plan=plan,
        end_seconds=2500.0,
    ).run()


def sidecars() -> Scenario:
    """Containers that run on when the workers are done: of a job, of a gang, of one that fails."""
    failing = Workload(
        steps=20, failure=FailureClass.UNKNOWN, fail_at_step=5, failing_attempts=1,
    )  # fmt: skip
    return Scenario(
        (NodePlan("n0", 4),),
        (
            Submission("one", 0.0, make_spec("one", sidecar=True), Workload(steps=10)),
            Submission("gang", 1.0, make_spec("gang", sidecar=True, workers=2), Workload(steps=10),
                       namespace=OTHER),
            Submission("again", 2.0, make_spec("again", sidecar=True), failing, namespace=OTHER),
        ),
    )  # fmt: skip


def finalizers() -> Scenario:
    """Jobs that are deleted and stay, running and waiting; others want their GPUs."""
    endless = Workload(steps=100_000, expected=ANY_END)
    kept: dict[str, Any] = {"finalizer": FOREIGN_FINALIZER}
    return Scenario(
        (NodePlan("n0", 1),),
        (
            Submission("kept", 0.0, make_spec("kept", **EXCLUSIVE), endless, 40.0, **kept),
            Submission("next", 5.0, make_spec("next", **EXCLUSIVE), Workload(steps=10),
                       namespace=OTHER),
            Submission("waits", 6.0, make_spec("waits", **EXCLUSIVE), endless, 20.0, **kept),
            Submission("last", 7.0, make_spec("last", **EXCLUSIVE), Workload(steps=10)),
        ),
    )  # fmt: skip


def graces() -> Scenario:
    """Jobs that are suspended while they run, each with a grace of its own, none or a gang's."""

    def suspended(name: str, at: float, grace_seconds: int | None, **fields: Any) -> Submission:
        spec = make_spec(name, grace_seconds=grace_seconds, gpu={"memory": "4Gi"}, **fields)
        saving = (grace_seconds or 30) * 0.7
        workload = Workload(2 * GIB, steps=60, checkpoint_steps=1000, checkpoint_seconds=saving)
        return Submission(
            name, at, spec, workload, suspend_at=at + 40, resume_at=at + 50,
            namespace=NAMESPACES[len(name) % 2],
        )  # fmt: skip

    return Scenario(
        (NodePlan("n0", 4), NodePlan("n1", 4)),
        (
            suspended("short", 0.0, 5),
            suspended("long", 1.0, 200),
            suspended("none", 2.0, None),
            suspended("gang", 3.0, 120, workers=2),
        ),
    )


def odd_words() -> Scenario:
    """Every odd termination message once, while others work."""
    failing: dict[str, Any] = {"failure": FailureClass.UNKNOWN, "failing_attempts": EVERY_ATTEMPT}
    odd = [
        Submission(
            f"odd{number}", 3.0 * number,
            make_spec(f"odd{number}", gpu={"memory": "4Gi"}, retry={"limit": 0}),
            Workload(steps=20, fail_at_step=2, final_text=words, expected="Failed", **failing),
            namespace=OTHER,
        )
        for number, words in enumerate(ODD_MESSAGES)
    ]  # fmt: skip
    well = [
        Submission(f"job{n}", 5.0 * n, make_spec(f"job{n}"), Workload(steps=15)) for n in range(4)
    ]
    return Scenario((NodePlan("n0", 4), NodePlan("n1", 4)), (*odd, *well))
