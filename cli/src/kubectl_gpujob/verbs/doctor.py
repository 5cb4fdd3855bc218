"""kubectl gpujob doctor: checks of the installation and of the jobs, each with its remedy.

A check that may not be made, for lack of a right, is reported as such and is no fault.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import Enum
from typing import Any

import yaml

from gpujob_api.codec import FieldError
from gpujob_api.gpujob import GPUJob, JobPhase
from gpujob_api.gpunode import STATUS_SECONDS_MAX, GPUNode
from gpujob_api.gpuqueue import DEFAULT_QUEUE, GPUQueue
from gpujob_api.manifest import RESOURCES
from gpujob_api.meta import GROUP, LABEL_MANAGED, VERSION, ConditionStatus
from gpujob_api.version import installed_version
from gpujob_operator.decide.capacity.model_names import price_names_without_model
from gpujob_operator.decide.model.conditions import ACCEPTED, UNPROTECTED, UNTUNED, find
from gpujob_operator.decide.model.pod_template import claims
from gpujob_operator.read.configuration import configuration_from_text
from kubectl_gpujob import text
from kubectl_gpujob.cluster import Cluster, Manifest
from kubectl_gpujob.errors import EXIT_DONE, EXIT_FAILED, UserError
from kubectl_gpujob.fleet import read_nodes, read_queues
from kubectl_gpujob.grammar import World, add_output, add_target
from kubectl_gpujob.listing import operator_configurations
from kubectl_gpujob.screen import list_of

OPERATORS = "app.kubernetes.io/name=gpujob,app.kubernetes.io/component=operator"
AGENTS = "app.kubernetes.io/name=gpujob,app.kubernetes.io/component=agent"
LEASE = "gpujob-operator"
# A Lease that was not renewed for as long as this has no holder any more.
LEASE_SECONDS_MIN, LEASE_SECONDS_MAX = 15.0, 60.0
# A new job has its first status within this.
ANSWER_SECONDS_MAX = 60.0
CLOCK_SECONDS_MAX = 30.0
RESTARTS_MAX = 3
NAMED_MAX = 5
# Fields of `Facts` that are no lists of the API server: `now`, `server_time` and `missing`.
_NOT_READ = 3


class Verdict(Enum):
    OK = "ok"
    # Something works less well than it could.
    NOTE = "note"
    FAULT = "fault"
    UNKNOWN = "not checked"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    verdict: Verdict
    text: str
    remedy: str = ""


@dataclass(slots=True)
class Facts:
    """What the checks read. None: it may not be read, and `missing` says why."""

    now: datetime
    server_time: datetime | None = None
    crds: Sequence[Manifest] | None = None
    deployments: Sequence[Manifest] | None = None
    daemon_sets: Sequence[Manifest] | None = None
    operator_pods: Sequence[Manifest] | None = None
    leases: Sequence[Manifest] | None = None
    nodes: Sequence[Manifest] | None = None
    gpu_nodes: Sequence[GPUNode] | None = None
    queues: Sequence[GPUQueue] | None = None
    claims: Sequence[Manifest] | None = None
    jobs: Sequence[GPUJob] | None = None
    # Texts of the operators' configuration files.
    configurations: Mapping[str, str] | None = None
    missing: dict[str, str] = field(default_factory=dict[str, str])


def arguments(parser: argparse.ArgumentParser) -> None:
    add_target(parser)
    add_output(parser, "table", "json")


def run(options: argparse.Namespace, world: World) -> int:
    findings = diagnose(read_facts(world.cluster(options), world.now()))
    faults = sum(one.verdict is Verdict.FAULT for one in findings)
    if options.output == "json":
        items = [
            {"check": f.check, "verdict": f.verdict.value, "text": f.text, "remedy": f.remedy}
            for f in findings
        ]
        world.screen.json(list_of("FindingList", items))
        return EXIT_FAILED if faults else EXIT_DONE
    for one in findings:
        rows = [
            (label, said) for label, said in (("Found", one.text), ("Remedy", one.remedy)) if said
        ]
        world.screen.rows(f"{one.verdict.value}: {one.check}", rows)
    return EXIT_FAILED if faults else EXIT_DONE


def read_facts(cluster: Cluster, now: datetime) -> Facts:
    facts = Facts(now, cluster.server_time())

    def read(name: str, call: Callable[[], Any]) -> None:
        try:
            setattr(facts, name, call())
        except UserError as error:
            facts.missing[name] = str(error)

    def listed(what: str, path: str, **query: str) -> Callable[[], list[Manifest]]:
        return lambda: cluster.objects(what, path, **query)

    crds = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    read("crds", listed("customresourcedefinitions", crds))
    apps = "/apis/apps/v1"
    read("deployments", listed("deployments", f"{apps}/deployments", labelSelector=OPERATORS))
    read("daemon_sets", listed("daemonsets", f"{apps}/daemonsets", labelSelector=AGENTS))
    read("operator_pods", listed("pods", "/api/v1/pods", labelSelector=OPERATORS))
    read("leases", listed("leases", "/apis/coordination.k8s.io/v1/leases"))
    read("nodes", listed("nodes", "/api/v1/nodes", labelSelector=f"{LABEL_MANAGED}=true"))
    read("gpu_nodes", lambda: read_nodes(cluster))
    read("queues", lambda: read_queues(cluster))
    read("claims", listed("claims", "/api/v1/persistentvolumeclaims"))
    read("jobs", lambda: cluster.jobs(all_namespaces=True))
    read("configurations", lambda: _configurations(cluster))
    if facts.server_time is None and len(facts.missing) == len(fields(Facts)) - _NOT_READ:
        # Every user may ask for the time, so nothing answers.
        raise UserError(next(iter(facts.missing.values())))
    return facts


def _configurations(cluster: Cluster) -> Mapping[str, str]:
    found = operator_configurations(cluster)
    if found is None:
        raise UserError("you may not read the operator's configuration")
    return found


def diagnose(facts: Facts) -> list[Finding]:
    """Returns the findings of all checks, faults first."""
    found: list[Finding] = []
    for name, needs, check in CHECKS:
        missing = [facts.missing[need] for need in needs if getattr(facts, need) is None]
        if missing:
            found.append(Finding(name, Verdict.UNKNOWN, missing[0]))
            continue
        problems = list(check(facts))
        found += problems or [Finding(name, Verdict.OK, "")]
    order = [Verdict.FAULT, Verdict.NOTE, Verdict.UNKNOWN, Verdict.OK]
    return sorted(found, key=lambda one: order.index(one.verdict))


def _names(items: Sequence[str]) -> str:
    more = f" and {len(items) - NAMED_MAX} more" if len(items) > NAMED_MAX else ""
    return ", ".join(items[:NAMED_MAX]) + more


def _crds(facts: Facts) -> Iterator[Finding]:
    served = {
        item["metadata"]["name"]: [one["name"] for one in item["spec"]["versions"] if one["served"]]
        for item in facts.crds or ()
        if item["metadata"]["name"].endswith(f".{GROUP}")
    }
    absent = [one.crd_name for one in RESOURCES.values() if one.crd_name not in served]
    if absent:
        yield Finding(
            "CRDs",
            Verdict.FAULT,
            f"missing: {_names(absent)}",
            "Install the chart, or apply its CRDs: helm show crds, kubectl apply --server-side",
        )
    other = [name for name, versions in served.items() if VERSION not in versions]
    if other:
        yield Finding(
            "CRDs",
            Verdict.FAULT,
            f"{_names(other)} do not serve {VERSION}, which this plugin reads",
            "Install the plugin of the operator's version",
        )


def _operator(facts: Facts) -> Iterator[Finding]:
    deployments = facts.deployments or ()
    if not deployments and not _is_led(facts):
        yield Finding(
            "operator",
            Verdict.FAULT,
            "there is no Deployment of the chart",
            "helm install it; an operator that was started otherwise is not seen here",
        )
    for item in deployments:
        wanted = (item.get("spec") or {}).get("replicas", 1)
        available = (item.get("status") or {}).get("availableReplicas") or 0
        if available < 1 <= wanted:
            namespace, name = item["metadata"]["namespace"], item["metadata"]["name"]
            yield Finding(
                "operator",
                Verdict.FAULT,
                f"{namespace}/{name} has {available} of {wanted} pods available",
                f"kubectl -n {namespace} describe deployment {name}; then kubectl logs",
            )
        if wanted == 0:
            yield Finding(
                "operator", Verdict.FAULT, "it is scaled to 0", "kubectl scale it to 1 or 2"
            )


def _restarts(facts: Facts) -> Iterator[Finding]:
    for pod in facts.operator_pods or ():
        statuses = (pod.get("status") or {}).get("containerStatuses") or ()
        restarts = max((one.get("restartCount", 0) for one in statuses), default=0)
        if restarts > RESTARTS_MAX:
            metadata = pod["metadata"]
            yield Finding(
                "operator's restarts",
                Verdict.FAULT,
                f"{metadata['name']} restarted {restarts} times",
                f"kubectl -n {metadata['namespace']} logs {metadata['name']} --previous",
            )


def _version(facts: Facts) -> Iterator[Finding]:
    labels = {
        str((item["metadata"].get("labels") or {}).get("app.kubernetes.io/version", ""))
        for item in facts.deployments or ()
    }
    different = sorted(labels - {installed_version(), ""})
    if different:
        yield Finding(
            "versions",
            Verdict.NOTE,
            f"this plugin is {installed_version()}, the operator {', '.join(different)}",
            "Install the plugin of the operator's version",
        )


def _lease(facts: Facts) -> Iterator[Finding]:
    ours = [one for one in facts.leases or () if one["metadata"]["name"] == LEASE]
    if not ours:
        yield Finding(
            "leadership",
            Verdict.FAULT,
            f"no operator has ever held the Lease {LEASE}",
            "Look at the operator's log: it may lack rights on Leases",
        )
    now = facts.server_time or facts.now
    for lease in ours:
        spec = lease.get("spec") or {}
        age_seconds = _age_seconds(spec.get("renewTime"), now)
        # A leader renews several times within the duration.
        duration_seconds = float(spec.get("leaseDurationSeconds") or LEASE_SECONDS_MAX)
        limit_seconds = min(max(3 * duration_seconds, LEASE_SECONDS_MIN), LEASE_SECONDS_MAX)
        if age_seconds is None or age_seconds > limit_seconds or not spec.get("holderIdentity"):
            since = "never" if age_seconds is None else f"{text.duration(age_seconds)} ago"
            yield Finding(
                "leadership",
                Verdict.FAULT,
                f"no operator leads: the Lease was renewed {since}",
                "Jobs run on, and nothing is decided. Start the operator",
            )


def _is_led(facts: Facts) -> bool:
    return facts.leases is not None and not list(_lease(facts))


def _age_seconds(moment: object, now: datetime) -> float | None:
    try:
        return (now - datetime.fromisoformat(str(moment))).total_seconds()
    except ValueError:
        return None


def _agents(facts: Facts) -> Iterator[Finding]:
    for item in facts.daemon_sets or ():
        status, metadata = item.get("status") or {}, item["metadata"]
        wanted, ready = status.get("desiredNumberScheduled", 0), status.get("numberReady", 0)
        if wanted == 0:
            yield Finding(
                "agents",
                Verdict.FAULT,
                f"{metadata['name']} selects no node",
                f"Label the GPU nodes: kubectl label node NODE {LABEL_MANAGED}=true",
            )
        elif ready < wanted:
            yield Finding(
                "agents",
                Verdict.FAULT,
                f"{ready} of {wanted} agents are ready",
                f"kubectl -n {metadata['namespace']} describe pods -l {AGENTS}",
            )


def _unread_nodes(facts: Facts) -> Iterator[Finding]:
    read = {node.metadata.name for node in facts.gpu_nodes or ()}
    names = [item["metadata"]["name"] for item in facts.nodes or ()]
    unread = [name for name in names if name not in read]
    if unread:
        yield Finding(
            "GPU nodes",
            Verdict.FAULT,
            f"no agent has reported from {_names(unread)}",
            "Look at the agent there: its log names a missing driver or runtime class",
        )
    if not names:
        yield Finding(
            "GPU nodes",
            Verdict.FAULT,
            f"no node has the label {LABEL_MANAGED}=true",
            f"kubectl label node NODE {LABEL_MANAGED}=true",
        )


def _stale_nodes(facts: Facts) -> Iterator[Finding]:
    now = facts.server_time or facts.now
    limit_seconds = 2 * STATUS_SECONDS_MAX
    stale = [
        node.metadata.name
        for node in facts.gpu_nodes or ()
        if node.status.observed_at is None
        or (now - node.status.observed_at).total_seconds() > limit_seconds
    ]
    if stale:
        yield Finding(
            "readings",
            Verdict.FAULT,
            f"no reading for {text.duration(limit_seconds)} from {_names(stale)}",
            "Look at the agent there; nothing new is placed on these nodes",
        )


def _sick_gpus(facts: Facts) -> Iterator[Finding]:
    for node in facts.gpu_nodes or ():
        for gpu in node.status.gpus:
            if not gpu.healthy:
                yield Finding(
                    "GPUs",
                    Verdict.FAULT,
                    f"{gpu.uuid} on {node.metadata.name}: {gpu.health_message or 'unhealthy'}",
                    "Reset the GPU or restart its node",
                )


def _queues(facts: Facts) -> Iterator[Finding]:
    for queue in facts.queues or ():
        accepted = find(queue.status, ACCEPTED)
        if accepted is not None and accepted.status is ConditionStatus.FALSE:
            yield Finding("queues", Verdict.FAULT, f"{queue.metadata.name}: {accepted.message}")


def _queues_of_jobs(facts: Facts) -> Iterator[Finding]:
    known = {DEFAULT_QUEUE, *(queue.metadata.name for queue in facts.queues or ())}
    lost = [
        f"{job.metadata.key} ({job.spec.queue})"
        for job in facts.jobs or ()
        if not job.finished and job.spec.queue not in known
    ]
    if lost:
        yield Finding(
            "queues of jobs",
            Verdict.FAULT,
            f"these queues do not exist: {_names(lost)}",
            "Create the GPUQueue, or change spec.queue",
        )


def _unanswered(facts: Facts) -> Iterator[Finding]:
    now = facts.server_time or facts.now
    waiting = [
        job.metadata.key
        for job in facts.jobs or ()
        if not job.status.observed_generation
        and job.status.phase is JobPhase.PENDING
        and job.metadata.creation_timestamp is not None
        and (now - job.metadata.creation_timestamp).total_seconds() > ANSWER_SECONDS_MAX
    ]
    if waiting:
        yield Finding(
            "answers",
            Verdict.FAULT,
            f"the operator has not looked at {_names(waiting)}",
            "It does not run, or does not watch these namespaces (watchNamespaces)",
        )


def _claims(facts: Facts) -> Iterator[Finding]:
    phases = {
        (item["metadata"]["namespace"], item["metadata"]["name"]): _phase_of(item)
        for item in facts.claims or ()
    }
    for job in facts.jobs or ():
        namespace = job.metadata.namespace
        for claim in () if job.finished else claims(job):
            what = _UNFIT_CLAIMS.get(phases.get((namespace, claim), ""))
            if what is not None:
                yield Finding(
                    "claims",
                    Verdict.FAULT,
                    f"{job.metadata.key}: claim {claim} {what}",
                    f"kubectl get pvc -n {namespace} lists the existing ones",
                )


# Why the pods of a job's next attempt cannot mount a claim in this phase. It has none if it does
# not exist.
_UNFIT_CLAIMS = {
    "": "does not exist",
    "Lost": "has lost its volume",
    "Terminating": "is being deleted",
}


def _phase_of(claim: Manifest) -> str:
    """Returns the claim's phase as kubectl shows it."""
    if "deletionTimestamp" in claim["metadata"]:
        return "Terminating"
    return str((claim.get("status") or {}).get("phase") or "Pending")


def _unprotected(facts: Facts) -> Iterator[Finding]:
    for kind, text_of in ((UNPROTECTED, "an interruption loses work of"), (UNTUNED, "untuned:")):
        jobs = [
            job.metadata.key
            for job in facts.jobs or ()
            if not job.finished
            and (found := find(job.status, kind)) is not None
            and found.status is ConditionStatus.TRUE
        ]
        if jobs:
            yield Finding(
                "jobs",
                Verdict.NOTE,
                f"{text_of} {_names(jobs)}",
                "kubectl gpujob why has the reason",
            )


def _prices(facts: Facts) -> Iterator[Finding]:
    models = {gpu.model for node in facts.gpu_nodes or () for gpu in node.status.gpus}
    for where, content in (facts.configurations or {}).items() if models else ():
        try:
            names = price_names_without_model(configuration_from_text(content), models)
        except (FieldError, yaml.YAMLError) as error:
            remedy = "Correct the chart's value configuration: the operator does not start with it"
            yield Finding("prices", Verdict.FAULT, f"configmap {where}: {error}", remedy)
            continue
        if names:
            yield Finding(
                "prices",
                Verdict.NOTE,
                f"no GPU has the model of these prices: {_names(names)}",
                f"Name one of the cluster's models, or some of its words: {_names(sorted(models))}",
            )


def _clock(facts: Facts) -> Iterator[Finding]:
    if facts.server_time is None:
        return
    difference = (facts.now - facts.server_time).total_seconds()
    if abs(difference) > CLOCK_SECONDS_MAX:
        yield Finding(
            "clocks",
            Verdict.NOTE,
            f"this machine's clock differs from the API server's by {text.duration(difference)}",
            "Ages and remaining times are shown by this clock: correct it",
        )


CHECKS: Sequence[tuple[str, Sequence[str], Callable[[Facts], Iterator[Finding]]]] = (
    ("CRDs", ["crds"], _crds),
    ("operator", ["deployments"], _operator),
    ("operator's restarts", ["operator_pods"], _restarts),
    ("versions", ["deployments"], _version),
    ("leadership", ["leases"], _lease),
    ("agents", ["daemon_sets"], _agents),
    ("GPU nodes", ["nodes", "gpu_nodes"], _unread_nodes),
    ("readings", ["gpu_nodes"], _stale_nodes),
    ("GPUs", ["gpu_nodes"], _sick_gpus),
    ("queues", ["queues"], _queues),
    ("queues of jobs", ["queues", "jobs"], _queues_of_jobs),
    ("answers", ["jobs"], _unanswered),
    ("claims", ["claims", "jobs"], _claims),
    ("jobs", ["jobs"], _unprotected),
    ("prices", ["configurations", "gpu_nodes"], _prices),
    ("clocks", [], _clock),
)
