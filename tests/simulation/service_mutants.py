"""Decisions about services that break I17 in one way each, to show that the checks can fail."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime

from gpujob_api.gate import GateReport
from gpujob_operator.decide.model.service_plan import (
    CreateJob,
    RemoveJob,
    Role,
    ServiceInputs,
    ServicePlan,
    ServiceStep,
)
from gpujob_operator.decide.model.services import replica_name
from gpujob_operator.decide.services.plan import plan_services
from gpujob_operator.decide.services.replicas import replicas_of
from gpujob_operator.decide.services.revision import revision_of, settings_of

LONG_SECONDS = 10_000.0


def _changed(
    inputs: Iterable[ServiceInputs],
    now: datetime,
    change: Callable[[ServiceInputs, ServiceStep], ServiceStep],
) -> ServicePlan:
    """The real plan with its steps changed."""
    given = tuple(inputs)
    decided = plan_services(given, now)
    steps = {step.service.metadata.uid: step for step in decided.steps}
    found = (
        change(one, steps.get(one.service.metadata.uid, ServiceStep(one.service)))
        for one in given
        if one.service.metadata.deletion_timestamp is None
    )
    return replace(decided, steps=tuple(step for step in found if step.changes))


def replaces_all_at_once(inputs: Iterable[ServiceInputs], now: datetime) -> ServicePlan:
    """An update does not wait for the new replicas."""

    def change(given: ServiceInputs, step: ServiceStep) -> ServiceStep:
        revision = revision_of(given.service, settings_of(given.service))
        old = [
            one
            for one in replicas_of(given.jobs, given.service.status)
            if one.live and one.revision != revision
        ]
        return replace(step, removes=tuple(RemoveJob(one.job, "old") for one in old))

    return _changed(inputs, now, change)


def creates_too_many(inputs: Iterable[ServiceInputs], now: datetime) -> ServicePlan:
    """One more in every round."""

    def change(given: ServiceInputs, step: ServiceStep) -> ServiceStep:
        service = given.service
        settings = settings_of(service)
        revision = revision_of(service, settings)
        name = replica_name(service.metadata.name, revision, len(given.jobs))
        more = CreateJob(service, name, Role.REPLICA, revision, settings)
        return replace(step, creates=(*step.creates, more), removes=())

    return _changed(inputs, now, change)


def _with_reports(
    inputs: Iterable[ServiceInputs], change: Callable[[GateReport], GateReport]
) -> list[ServiceInputs]:
    found: list[ServiceInputs] = []
    for one in inputs:
        gates = [
            replace(gate, report=change(gate.report)) if gate.report is not None else gate
            for gate in one.gates
        ]
        jobs = [replace(job, report=None) for job in one.jobs]
        found.append(replace(one, gates=tuple(gates), jobs=tuple(jobs)))
    return found


def takes_every_gate_for_idle(inputs: Iterable[ServiceInputs], now: datetime) -> ServicePlan:
    """The last replica stops although there are requests."""
    return plan_services(
        _with_reports(
            inputs, lambda report: GateReport(report.sequence, report.held, 0, LONG_SECONDS)
        ),
        now,
    )


def sees_no_held_request(inputs: Iterable[ServiceInputs], now: datetime) -> ServicePlan:
    """No request starts a replica."""
    return plan_services(_with_reports(inputs, lambda report: replace(report, held=0)), now)


def creates_none(inputs: Iterable[ServiceInputs], now: datetime) -> ServicePlan:
    return _changed(inputs, now, lambda _, step: replace(step, creates=()))


def creates_one_at_most(inputs: Iterable[ServiceInputs], now: datetime) -> ServicePlan:
    def change(given: ServiceInputs, step: ServiceStep) -> ServiceStep:
        return replace(step, creates=()) if given.jobs else step

    return _changed(inputs, now, change)


def leaves_gates(inputs: Iterable[ServiceInputs], now: datetime) -> ServicePlan:
    """A gate that is not needed any more stays."""

    def change(_: ServiceInputs, step: ServiceStep) -> ServiceStep:
        return replace(step, gates=replace(step.gates, removes=()))

    return _changed(inputs, now, change)
