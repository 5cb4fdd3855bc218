"""One seed: a cluster, its jobs, operators and incidents; what came of it, checked."""

from collections.abc import Callable
from datetime import datetime
from functools import partial
from http import HTTPStatus

from gpujob_api.codec import parse_time
from gpujob_api.gpujob import GPUJob
from gpujob_api.report import Reply, Report
from gpujob_operator.client.api_errors import NotFound
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.decide.planner import Planner
from gpujob_operator.observe.cache import Kind
from tests.simulation.api_server import ApiServer, Manifest
from tests.simulation.clock import Clock
from tests.simulation.cluster import Cluster
from tests.simulation.faults import (
    FAULTS_END_SECONDS,
    Faults,
    Incident,
    make_faults,
    make_incidents,
)
from tests.simulation.findings import Violation
from tests.simulation.forecasts import ShownRanges
from tests.simulation.happenings import Happenings
from tests.simulation.hostile import HostileAuthor
from tests.simulation.job_facts import end_of, is_rid_of_its_limit, key_of
from tests.simulation.machines import Machine
from tests.simulation.operator_shell import OperatorShell, Parts, World
from tests.simulation.orphans import Orphans
from tests.simulation.pods import FINAL, is_live
from tests.simulation.posts import odd_posts, post_of
from tests.simulation.preemption_use import PreemptionUse
from tests.simulation.processes import Processes
from tests.simulation.queue_rules import QueueRules
from tests.simulation.quotas import PodQuotas
from tests.simulation.recorder import Recorder
from tests.simulation.result import Result
from tests.simulation.rough import make_rough_incidents, make_rough_scenario
from tests.simulation.service_rules import lags_of
from tests.simulation.services import Services, is_of_service
from tests.simulation.troubles import Troubles
from tests.simulation.users import Users
from tests.simulation.volumes import keeps_checkpoints
from tests.simulation.worker import Disk, Worker
from tests.simulation.workloads import ANY_END, Scenario, Submission, Workload

PlanFunction = Callable[[Snapshot, datetime], Plan]
END_SECONDS = 6000.0
QUIET_SECONDS = 90.0
RESTART_SECONDS = 3.0
CONFIGURATION = Configuration(report_url="http://operator/report", gate_image="operator:1")


class Simulation:
    def __init__(
        self,
        seed: int,
        *,
        scenario: Scenario | None = None,
        faults: Faults | None = None,
        incidents: list[Incident] | None = None,
        operators: int | None = None,
        plan: PlanFunction | None = None,
        parts: Parts | None = None,
        end_seconds: float = END_SECONDS,
    ) -> None:
        self._end_seconds = end_seconds
        self.seed = seed
        self.clock = Clock(seed)
        self.api = ApiServer(self.clock)
        self.scenario = scenario or make_rough_scenario(seed)
        self.faults = make_faults(seed) if faults is None else faults
        names = [node.name for node in self.scenario.nodes]
        if incidents is None:
            incidents = [*make_incidents(seed, names), *make_rough_incidents(seed, names)]
        self.incidents = incidents
        self.operator_names: set[str] = set()
        is_rough = self._is_rough()
        self.recorder = Recorder(self.api, self.operator_names, sees_all=not is_rough)
        if len(self.scenario.queues) > 1:
            QueueRules(self.api, self.recorder, CONFIGURATION.preemptions_max)
        PreemptionUse(self.api, self.recorder.fail)
        self.shells: list[OperatorShell] = []
        self.cluster = Cluster(
            self.clock, self.api, self._start_worker, self._workload_of, self.shells,
            lambda: self.clock.random.random() < self.faults.report_loss / 4,
        )  # fmt: skip
        self.cluster.agents.sent = self.recorder.read_gpus
        self.processes = Processes(
            self.api,
            self.cluster.machines,
            self.recorder.fail,
            self.recorder,
            self.cluster.done,
            lambda: self.faults.operator_clock_error_seconds == 0.0,
        )
        self.disks: dict[str, Disk] = {}
        self.happenings = Happenings(self.clock, self.cluster, self.shells, self.faults)
        self.cycles = 0
        self._plan = plan
        self._parts = parts or Parts()
        self.troubles = Troubles(self.clock, self.scenario.troubles)
        self.quotas = PodQuotas(self.clock, self.api, self.scenario.quotas)
        self._world = World(
            self.clock,
            self.api,
            self.faults,
            self.troubles,
            self.quotas,
            self.recorder.operator_broke,
        )
        self._users = Users(self.clock, self.api, self.scenario.submissions)
        self._hostile = HostileAuthor(self.clock, self.api, self.cluster)
        self._services = self._make_services()
        self._lists = 0
        self._orphans = Orphans(
            self.api,
            self.recorder.pods_of_ours,
            self.recorder.fail,
            FAULTS_END_SECONDS if is_rough else 0.0,
        )
        self._count = (2 if seed % 3 == 0 else 1) if operators is None else operators

    def _is_rough(self) -> bool:
        happens = self.incidents or self.scenario.troubles or self.scenario.quotas
        return bool(happens) or self.faults != Faults()

    def run(self) -> Result:
        ShownRanges(self.api, self.recorder.fail)
        for queue in self.scenario.queues:
            self.api.create(Kind.QUEUE, queue, "admin")
        for node in self.scenario.nodes:
            self.cluster.join(node)
        for _ in range(self._count):
            self._start_operator()
        self._users.begin()
        for incident in self.incidents:
            self.clock.after(incident.at, partial(self.happenings.happen, incident))
        for impostor in self.scenario.impostors:
            self.clock.after(impostor.at, lambda it=impostor: self._hostile.appear(it))
        self.clock.every(1.0, self._supervise)
        self.clock.run_until(FAULTS_END_SECONDS, self._is_broken)
        self.faults.stop()
        self._settle()
        result = self._result()
        for shell in self.shells:
            shell.close()
        if self._services is not None:
            self._services.close()
        return result

    def _make_services(self) -> Services | None:
        if not self.scenario.services:
            return None
        return Services(
            self.clock, self.api, self.cluster, self.shells, self.faults, self.scenario.services,
            self.operator_names,
            self.recorder.fail,
            self.recorder.operator_broke,
            lags_of(self.faults, self.incidents, troubled=bool(self.scenario.troubles)),
        )  # fmt: skip

    def _settle(self) -> None:
        """Until every job is where it belongs and nothing was written for a while."""
        while self.clock.now < self._end_seconds and not self.recorder.violations:
            self.clock.run_until(self.clock.now + 30, self._is_broken)
            quiet = self.clock.now - self.recorder.last_operator_write
            if quiet > QUIET_SECONDS and all(map(self._is_where_it_belongs, self.jobs())):
                return

    def _is_broken(self) -> bool:
        return bool(self.recorder.violations)

    def _is_where_it_belongs(self, job: GPUJob) -> bool:
        if job.metadata.deletion_timestamp is not None:
            return not self.recorder.live_pods(job.metadata.uid)
        if is_of_service(job):
            return job.finished
        return job.finished or self._expected(job) == "Pending"

    def _expected(self, job: GPUJob) -> str:
        return next(
            one.workload.expected for one in self.scenario.submissions if one.key == key_of(job)
        )

    # -- operators

    def _start_operator(self) -> None:
        name = f"operator-{len(self.operator_names)}"
        self.operator_names.add(name)
        self.shells.append(
            OperatorShell(
                name,
                self._world,
                self._planner(),
                CONFIGURATION,
                self._parts,
                self.faults.operator_clock_error_seconds,
            )
        )

    def _planner(self) -> PlanFunction:
        """The real one remembers, as in the operator; a process that starts remembers nothing."""
        return self._plan if self._plan is not None else Planner()

    def _supervise(self) -> bool:
        """Starts an operator for each that died, as its Deployment does."""
        self.processes.check()
        self._orphans.check()
        for shell in [shell for shell in self.shells if not shell.alive]:
            self.shells.remove(shell)
            self._count_of(shell)
            self.clock.after(RESTART_SECONDS, self._start_operator)
        return True

    def _count_of(self, shell: OperatorShell) -> None:
        self.cycles += shell.cycles
        self._lists += sum(
            count for (verb, _), count in shell.kube.requests.items() if verb == "list"
        )

    # -- workers

    def _start_worker(self, cluster: Cluster, machine: Machine, pod: Manifest) -> Worker:
        disk = Disk()
        if keeps_checkpoints(pod):
            disk = self.disks.setdefault(pod["metadata"]["labels"]["gpujob.dev/job-uid"], disk)
        if self._services is not None and self._services.has(pod):
            return self._services.start(cluster, machine, pod, self._tell, self.processes)
        workload = self._workload_of(pod)
        return Worker(
            cluster, machine, pod, workload, disk, self._peers_run, self._tell, self.processes
        )

    def _workload_of(self, pod: Manifest) -> Workload:
        if self._services is not None and self._services.has(pod):
            return self._services.plan_of(pod).model.workload
        key = f"{pod['metadata']['namespace']}/{pod['metadata']['labels']['gpujob.dev/job']}"
        return next(one.workload for one in self.scenario.submissions if one.key == key)

    def _peers_run(self, worker: Worker) -> bool:
        job = self.api.find(Kind.JOB, worker.job_uid)
        wanted = job["spec"].get("workers", 1) if job is not None else 1
        if wanted == 1:
            return True
        running = {
            other.rank
            for machine in self.cluster.machines.values()
            for other in machine.workers.values()
            if other.job_uid == worker.job_uid and other.attempt == worker.attempt
        }
        # What it does not wait for: the last steps of others are taken.
        done = {
            rank
            for job_uid, attempt, rank in self.cluster.done
            if (job_uid, attempt) == (worker.job_uid, worker.attempt)
        }
        return len(running | done) == wanted

    def _tell(self, worker: Worker, report: Report) -> None:
        """Over the network to each operator: those that do not lead refuse it."""
        if self.clock.random.random() < self.faults.report_loss:
            return
        body = report.to_text()
        peers = [one for m in self.cluster.machines.values() for one in m.workers.values()]
        for shell in [shell for shell in self.shells if shell.alive]:
            for post in odd_posts(worker, body, peers) if worker.lie is not None else ():
                shell.receive(post, lambda status, text: None)
            shell.receive(post_of(worker, body), partial(self._answered, worker))

    def _answered(self, worker: Worker, status: int, text: str) -> None:
        if status == HTTPStatus.OK:
            worker.heard(Reply.from_text(text))

    # -- the end

    def jobs(self) -> list[GPUJob]:
        return [self.api.job(job) for job in self.api.list(Kind.JOB)]

    def _result(self) -> Result:
        violations = list(self.recorder.violations)
        if not violations:
            violations = [
                *self._check_ends(),
                *self._check_rest(),
                *self._check_orphans(),
            ]
        if not violations and self._services is not None:
            self._services.finish(self._is_broken)
            violations = list(self.recorder.violations)
        for shell in self.shells:
            self._count_of(shell)
        return Result(
            self.seed,
            violations,
            {key_of(job): end_of(job) for job in self.jobs() if not is_of_service(job)},
            dict(self.recorder.attempts),
            self.recorder.operator_writes,
            self.cycles,
            self.api.version,
            self.clock.now,
            self._lists,
            dict(self.troubles.refused),
            {} if self._services is None else self._services.ends,
            dict(self.recorder.stories),
        )

    def _violation(self, invariant: str, message: str) -> Violation:
        return Violation(invariant, self.clock.now, message)

    def _check_ends(self) -> list[Violation]:
        """I4, I9: every job is where it would be without faults, and those that wait know why."""
        found: list[Violation] = []
        for submission in self.scenario.submissions:
            try:
                manifest = self.api.get(Kind.JOB, submission.namespace, submission.name)
            except NotFound:
                found.append(self._violation("I4", f"{submission.key} is gone"))
                continue
            job = self.api.job(manifest)
            found += self._check_end(job, submission)
        return found

    def _check_end(self, job: GPUJob, submission: Submission) -> list[Violation]:
        name, status = submission.key, job.status
        workload, wanted = submission.workload, submission.workload.expected
        if job.metadata.deletion_timestamp is not None:
            return []
        reasons = {c.type: f"{c.reason}: {c.message}" for c in status.conditions}
        found: list[Violation] = []
        if job.finished and not workload.failing_attempts:
            wanted = ANY_END if is_rid_of_its_limit(job, workload.memory_bytes) else wanted
        if job.metadata.uid in self.processes.misread:
            wanted = ANY_END
        if status.phase.value != wanted and wanted != ANY_END:
            invariant = "I9" if job.finished else "I11"
            text = f"{name} is {status.phase.value} after {self.clock.now:.0f} s, not {wanted}"
            found.append(self._violation(invariant, f"{text}; {reasons} {status.counters}"))
        elif status.phase.value not in FINAL and not reasons.get("Scheduled", ": ").strip(": "):
            found.append(self._violation("I4", f"{name} waits without a reason"))
        if status.observed_generation != job.metadata.generation:
            text = f"{name}: observed {status.observed_generation} of {job.metadata.generation}"
            found.append(self._violation("I8", text))
        return found

    def _check_rest(self) -> list[Violation]:
        quiet = self.clock.now - self.recorder.last_operator_write
        if quiet >= QUIET_SECONDS:
            return []
        return [self._violation("I8", f"an operator wrote {quiet:.0f} s before the end")]

    def _check_orphans(self) -> list[Violation]:
        """I7: every pod of ours has a job, and one that lives has a job that is not deleted.

        Those that lost the reference to their owner are let go, and those that are being deleted
        have their grace.
        """
        jobs = {job["metadata"]["uid"]: job for job in self.api.list(Kind.JOB)}
        kept = {uid for uid, job in jobs.items() if "deletionTimestamp" not in job["metadata"]}
        pods = [
            pod["metadata"]["name"]
            for pod in self.recorder.pods_of_ours()
            if self.recorder.job_of(pod) not in (kept if is_live(pod) else jobs)
            and pod["metadata"].get("ownerReferences")
            and not self._is_within_grace(pod)
        ]
        return [self._violation("I7", f"pods of no job: {pods}")] if pods else []

    def _is_within_grace(self, pod: Manifest) -> bool:
        ends_at = pod["metadata"].get("deletionTimestamp")
        return is_live(pod) and ends_at is not None and parse_time(ends_at) >= self.clock.moment


def run_seed(seed: int, plan: PlanFunction | None = None) -> Result:
    """The jobs of the seed with its faults."""
    return Simulation(seed, plan=plan).run()


def run_calm(seed: int) -> Result:
    """The jobs of the seed without any fault."""
    return Simulation(seed, faults=Faults(), incidents=[], operators=1).run()
