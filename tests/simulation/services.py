"""The GPUServices of one simulation: their users, clients, processes and rules."""

import re
from collections.abc import Callable, Iterator, Sequence, Set

from gpujob_api.gpujob import GPUJob
from gpujob_api.meta import LABEL_JOB, LABEL_SERVICE, LABEL_SERVICE_UID
from gpujob_operator.client.api_errors import NotFound
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import ApiServer, Manifest, OtherKind
from tests.simulation.clock import Clock
from tests.simulation.cluster import Cluster
from tests.simulation.faults import Faults
from tests.simulation.gate_process import GateProcess
from tests.simulation.machines import Machine
from tests.simulation.operator_shell import OperatorShell
from tests.simulation.pods import is_gate, of_service
from tests.simulation.requests import Network, takes_requests
from tests.simulation.server import Measurement, Server
from tests.simulation.service_pods import ServicePods
from tests.simulation.service_rules import PROMISE, Lags, ServiceRules
from tests.simulation.service_users import Clients, ServiceUsers, Want
from tests.simulation.service_worlds import SERVICES_END_SECONDS, ServicePlan
from tests.simulation.worker import Tell, Witness, Worker

# The names of a service's jobs: `decide.services.replicas`.
_NAME = re.compile(r"^(.+?)-(?:pick-)?[0-9a-f]{6}(?:-[0-9]+)?$")
# From the end of all jobs: a queue of starts, pauses after failures, a load of the model.
READY_SECONDS_MAX = 300.0
STEP_SECONDS = 3.0
# Until a gate takes requests.
GATE_SECONDS = 9.0


class Services:
    """The services of a scenario. Without any, it does nothing."""

    def __init__(
        self,
        clock: Clock,
        api: ApiServer,
        cluster: Cluster,
        shells: Sequence[OperatorShell],
        faults: Faults,
        plans: Sequence[ServicePlan],
        operators: Set[str],
        fail: Callable[[str, str], None],
        broke: Callable[[str, BaseException], None],
        lags: Lags,
    ) -> None:
        self._clock = clock
        self._api = api
        self._shells = shells
        self._faults = faults
        self._fail = fail
        self._broke = broke
        self._plans = {plan.key: plan for plan in plans}
        self._crashes = {plan.key: list(plan.model.crashes) for plan in plans}
        self._network = Network(clock, api)
        self._pods = ServicePods(clock, api, cluster.machines, self._network, self._start_gate)
        self._users = ServiceUsers(clock, api, plans)
        self.rules = ServiceRules(api, operators, self._pods.gates, fail, lags)
        self._clients = Clients(clock, self._network, plans, self.rules.ended)
        self._users.begin()
        self._clients.begin()
        clock.after(SERVICES_END_SECONDS, self._leave)

    @property
    def ends(self) -> dict[str, int]:
        """The number of requests by their end."""
        return {end.value: count for end, count in self.rules.ends.items()}

    def has(self, pod: Manifest) -> bool:
        match = _NAME.match(pod["metadata"]["labels"][LABEL_JOB])
        return match is not None and f"{pod['metadata']['namespace']}/{match[1]}" in self._plans

    def plan_of(self, pod: Manifest) -> ServicePlan:
        """Returns the service of the pod of a replica or a measurement."""
        return self._plan(pod["metadata"]["namespace"], pod["metadata"]["labels"][LABEL_JOB])

    def _plan(self, namespace: str, job: str) -> ServicePlan:
        match = _NAME.match(job)
        assert match is not None, job
        return self._plans[f"{namespace}/{match[1]}"]

    def start(
        self, cluster: Cluster, machine: Machine, pod: Manifest, tell: Tell, witness: Witness
    ) -> Worker:
        """Returns the process of the pod."""
        plan = self.plan_of(pod)
        if LABEL_SERVICE not in pod["metadata"]["labels"]:
            return Measurement(cluster, machine, pod, plan.model, tell, witness)
        crashes = self._crashes[plan.key]
        crash = crashes.pop(0) if crashes else None
        return Server(
            cluster, machine, pod, plan.model, crash, tell, witness, self.rules.lost,
            self.rules.misrouted,
        )  # fmt: skip

    def _start_gate(self, machine: Machine, pod: Manifest) -> GateProcess:
        return GateProcess(
            self._clock, machine, pod, self._network, self._shells, self._faults,
            lambda error: self._broke("a gate", error),
        )  # fmt: skip

    # -- the end of a seed

    def _leave(self) -> None:
        """Leaves the cluster to jobs, of which each then has room."""
        self._clients.pause = True
        self._users.want(Want.NONE)

    def finish(self, is_broken: Callable[[], bool]) -> None:
        """Creates all services again, now that all GPUs are free, and waits until each answers.

        They are suspended at first, and have gates: those that need one begin without a replica,
        and the gates of the others have to go.
        """
        self._users.want(Want.SUSPENDED)
        self._clock.run_until(self._clock.now + GATE_SECONDS)
        self._users.want(Want.AS_PLANNED)
        began_at = self._clock.now
        while self._clock.now - began_at < READY_SECONDS_MAX and not is_broken():
            self._clock.run_until(self._clock.now + STEP_SECONDS)
            for plan in self._plans.values():
                if self.rules.answered_at.get(plan.key, 0.0) <= began_at and self._is_there(plan):
                    self._clients.send(plan)
            if not any(self._missing(began_at)):
                break
        self.rules.finish()
        for text in (*self._missing(began_at), *self._left()):
            self._fail(PROMISE, f"{text} {self._clock.now - began_at:.0f} s after the last job")

    def _is_there(self, plan: ServicePlan) -> bool:
        return plan.wanted(self._clock.now) is not None

    def _missing(self, since: float) -> Iterator[str]:
        for plan in self._plans.values():
            spec = plan.wanted(self._clock.now)
            if spec is None:
                continue
            if self.rules.answered_at.get(plan.key, 0.0) <= since:
                yield f"{plan.key} has answered no request"
            uid = self._uid(plan)
            ready = sum(
                of_service(pod) == uid and not is_gate(pod) and takes_requests(pod)
                for pod in self._api.list(Kind.POD)
            )
            wanted = spec["replicas"]["minimum"]
            if ready < wanted:
                yield f"{plan.key} has {ready} of {wanted} replicas"
            if wanted and any(self._gates_of(uid)):
                yield f"{plan.key} has a gate"

    def _uid(self, plan: ServicePlan) -> str:
        try:
            return self._api.get(Kind.SERVICE, plan.namespace, plan.name)["metadata"]["uid"]
        except NotFound:
            return ""

    def _gates_of(self, uid: str) -> Iterator[Manifest]:
        return (
            pod
            for pod in self._api.list(Kind.POD)
            if is_gate(pod)
            and of_service(pod) == uid
            and "deletionTimestamp" not in pod["metadata"]
        )

    def _left(self) -> Iterator[str]:
        """Yields the objects that belong to no service any more."""
        services = {one["metadata"]["uid"] for one in self._api.list(Kind.SERVICE)}
        for kind in (Kind.JOB, Kind.POD, OtherKind.SERVICE):
            for one in self._api.list(kind):
                uid = of_service(one)
                # Pods that lost the reference to their owner are let go.
                is_let_go = kind is Kind.POD and not one["metadata"].get("ownerReferences")
                if uid and uid not in services and not is_let_go:
                    yield f"{kind.value} {one['metadata']['name']} is of no service"

    def close(self) -> None:
        for gate in self._pods.gates.values():
            gate.close()


def is_of_service(job: GPUJob) -> bool:
    return LABEL_SERVICE_UID in job.metadata.labels
