"""The operator's command line and configuration file."""

import argparse
import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from gpujob_api.codec import FieldError
from gpujob_api.json_values import clean_text
from gpujob_api.version import ShowVersion
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.leadership.lease import LEASE_SECONDS
from gpujob_operator.leadership.report_endpoint import ReportService
from gpujob_operator.port.readings import AgentAccount
from gpujob_operator.read.configuration import configuration_from_text

_HELP = "Places GPUJobs on GPUs, measures them, and resumes them after interruptions."
_ACCOUNT = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_NAMESPACE = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Listen:
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of `gpujob-operator run`. Addresses with port 0 take a free port and log it."""

    kubeconfig: str | None
    namespace: str
    watch_namespaces: frozenset[str]
    identity: str
    lease_seconds: float
    report_listen: Listen
    report_url: str | None
    report_service: ReportService | None
    agent_account: AgentAccount | None
    metrics_listen: Listen
    configuration: Configuration
    dump_directory: Path | None
    dump_every: bool
    crash_after_writes: int | None
    log_format: str
    log_level: str


def parse_arguments(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpujob-operator", description=_HELP)
    parser.add_argument("--version", action=ShowVersion)
    commands = parser.add_subparsers(dest="command", required=True)
    _add_run(commands.add_parser("run", help="run the operator"))
    replay = commands.add_parser("replay", help="decide a dumped cycle again and compare")
    replay.add_argument("file", type=Path, help="a cycle-*.json from --dump-directory")
    replay.add_argument(
        "--why", metavar="NAMESPACE/JOB", help="also explain the placement of the job"
    )
    return parser.parse_args(arguments)


def _add_run(run: argparse.ArgumentParser) -> None:
    add = run.add_argument
    add("--kubeconfig", help="without it: the pod's service account")
    add("--namespace", default="gpujob-system", help="namespace of the operator's Lease")
    add(
        "--watch-namespaces",
        type=_namespaces,
        default="",
        metavar="A,B",
        help="namespaces whose GPUJobs are managed; default: all",
    )
    add("--identity", default="", help="the Lease's holder; default: host name and process id")
    add("--lease-seconds", type=float, default=LEASE_SECONDS)
    add("--report-listen", type=listen_address, default="0.0.0.0:8080", metavar="HOST:PORT")
    add("--report-url", help="report address for workers; default: the listening address")
    add("--report-service", help="a Service without selector, to point at the leader's pod")
    add("--pod-address", default="", help="with --report-service: this pod's IP address")
    add("--pod-uid", default="", help="with --report-service: this pod's UID; its name: --identity")
    add(
        "--agent-account",
        metavar="NAMESPACE:NAME",
        help="the agents' service account; without it no agent may send readings directly",
    )
    add("--metrics-listen", type=listen_address, default="0.0.0.0:8081", metavar="HOST:PORT")
    add("--configuration", type=Path, help="YAML with the fields of Configuration, camelCase")
    add("--dump-directory", type=Path, help="folder for cycles dumped on SIGUSR1 and on errors")
    add("--dump-every", action="store_true", help="dump every cycle that writes something")
    add(
        "--crash-after-writes",
        type=int,
        help=argparse.SUPPRESS,  # for tests: exit without cleanup after the N-th write
    )
    add("--log-format", choices=("json", "text"), default="json")
    add("--log-level", choices=("debug", "info", "warning", "error"), default="info")


def run_options(arguments: argparse.Namespace, identity: str) -> RunOptions:
    """Returns the options. Raises `FieldError` with the option or the configuration
    file's field.
    """
    if not 1 <= arguments.lease_seconds <= 3600:
        raise FieldError("--lease-seconds", f"must be 1 to 3600; got {arguments.lease_seconds}")
    return RunOptions(
        kubeconfig=arguments.kubeconfig,
        namespace=arguments.namespace,
        watch_namespaces=arguments.watch_namespaces,
        identity=arguments.identity or identity,
        lease_seconds=arguments.lease_seconds,
        report_listen=arguments.report_listen,
        report_url=arguments.report_url,
        report_service=_report_service(arguments),
        agent_account=_agent_account(arguments.agent_account),
        metrics_listen=arguments.metrics_listen,
        configuration=load_configuration_file(arguments.configuration),
        dump_directory=arguments.dump_directory,
        dump_every=arguments.dump_every,
        crash_after_writes=arguments.crash_after_writes,
        log_format=arguments.log_format,
        log_level=arguments.log_level,
    )


def _report_service(arguments: argparse.Namespace) -> ReportService | None:
    if not arguments.report_service:
        return None
    try:
        ipaddress.ip_address(arguments.pod_address)
    except ValueError:
        problem = f"must be an IP address; got {arguments.pod_address!r}"
        raise FieldError("--pod-address", problem) from None
    for option, value in (("--pod-uid", arguments.pod_uid), ("--identity", arguments.identity)):
        if not value:
            raise FieldError(option, "is required with --report-service")
    return ReportService(
        namespace=arguments.namespace,
        name=arguments.report_service,
        port=arguments.report_listen.port,
        pod_name=arguments.identity,
        pod_uid=arguments.pod_uid,
        pod_address=arguments.pod_address,
    )


def _agent_account(text: str | None) -> AgentAccount | None:
    if not text:
        return None
    namespace, _, name = text.partition(":")
    if not _NAMESPACE.fullmatch(namespace) or not _ACCOUNT.fullmatch(name):
        raise FieldError("--agent-account", f"must be NAMESPACE:NAME; got {text!r}")
    return AgentAccount(namespace, name)


def load_configuration_file(path: Path | None) -> Configuration:
    """Reads the file, or returns the defaults. Raises `FieldError`, also for an unknown field."""
    if path is None:
        return Configuration()
    try:
        return configuration_from_text(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        problem = clean_text(str(error))
        raise FieldError("--configuration", f"{path} cannot be read: {problem}") from None


def with_report_url(configuration: Configuration, url: str) -> Configuration:
    return replace(configuration, report_url=configuration.report_url or url)


def _namespaces(text: str) -> frozenset[str]:
    names = frozenset(name.strip() for name in text.split(",") if name.strip())
    wrong = sorted(name for name in names if not _NAMESPACE.fullmatch(name))
    if wrong:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r} is not a name of a namespace")
    return names


def listen_address(text: str) -> Listen:
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > 65535:
        raise argparse.ArgumentTypeError(f"must be HOST:PORT; got {text!r}")
    return Listen(host, int(port))
