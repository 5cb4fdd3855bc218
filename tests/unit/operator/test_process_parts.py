"""Options, configuration file, logs, health: what a platform team meets first."""

import json
import logging
import sys
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from gpujob_api.codec import FieldError
from gpujob_operator import __main__ as command
from gpujob_operator.cycle import CycleDumps
from gpujob_operator.decide.model.configuration import Configuration, DeviceAccess
from gpujob_operator.decide.model.plan import Plan
from gpujob_operator.decide.planner import plan
from gpujob_operator.leadership.report_endpoint import ReportService
from gpujob_operator.options import (
    Listen,
    load_configuration_file,
    parse_arguments,
    run_options,
    with_report_url,
)
from gpujob_operator.telemetry.health import HealthServer
from gpujob_operator.telemetry.logs import JsonFormatter, Log, TextFormatter
from gpujob_operator.telemetry.metrics import Metrics
from tests.harness.builders import after, make_job, make_snapshot


def test_defaults() -> None:
    options = run_options(parse_arguments(["run"]), "me")
    assert (options.namespace, options.identity) == ("gpujob-system", "me")
    assert options.report_listen == Listen("0.0.0.0", 8080)
    assert options.configuration == Configuration()
    assert options.crash_after_writes is None


@pytest.mark.parametrize("value", ["8080", "host:", "host:x", "host:70000", ":80"])
def test_a_bad_address_is_refused(value: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(["run", "--report-listen", value])
    assert "HOST:PORT" in capsys.readouterr().err


def test_an_ipv6_address() -> None:
    arguments = parse_arguments(["run", "--report-listen", "::1:80"])
    assert arguments.report_listen == Listen("::1", 80)


@pytest.mark.parametrize("seconds", ["0", "-1", "nan", "99999"])
def test_absurd_lease_seconds(seconds: str) -> None:
    with pytest.raises(FieldError, match="--lease-seconds"):
        run_options(parse_arguments(["run", "--lease-seconds", seconds]), "me")


def _file(folder: Path, text: str) -> Path:
    path = folder / "configuration.yaml"
    path.write_text(text)
    return path


def test_configuration_file(tmp_path: Path) -> None:
    text = "memoryMarginFraction: 0.2\ndeviceAccess: DevicePlugin\npricePerGpuHour: {A10: 1}\n"
    configuration = load_configuration_file(_file(tmp_path, text))
    assert configuration.memory_margin_fraction == 0.2
    assert configuration.device_access is DeviceAccess.DEVICE_PLUGIN
    assert configuration.price_per_gpu_hour == {"A10": 1.0}


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("memoryMarginFraction: much", "configuration.memoryMarginFraction"),
        ("memoryMarginFractoin: 0.2", "configuration.memoryMarginFractoin"),
        ("- a list", "configuration"),
        ("a: b: c", "--configuration"),
        ("deviceAccess: Telepathy", "configuration.deviceAccess"),
    ],
)
def test_a_bad_configuration_names_the_field(tmp_path: Path, text: str, field: str) -> None:
    with pytest.raises(FieldError) as caught:
        load_configuration_file(_file(tmp_path, text))
    assert caught.value.field == field


def test_a_missing_configuration_file(tmp_path: Path) -> None:
    with pytest.raises(FieldError, match="--configuration"):
        load_configuration_file(tmp_path / "nowhere.yaml")


def test_an_empty_file_is_the_defaults(tmp_path: Path) -> None:
    assert load_configuration_file(_file(tmp_path, "")) == Configuration()


def test_a_configured_report_url_wins() -> None:
    assert with_report_url(Configuration(), "http://a").report_url == "http://a"
    assert (
        with_report_url(Configuration(report_url="http://b"), "http://a").report_url == "http://b"
    )


def _record(**keys: object) -> logging.LogRecord:
    record = logging.LogRecord("name", logging.INFO, "file", 1, "cycle", (), None)
    record.gpujob_keys = keys
    return record


def test_json_log_lines() -> None:
    line = json.loads(JsonFormatter().format(_record(items=3, path=Path("/a"))))
    assert line["message"] == "cycle"
    assert (line["items"], line["path"], line["level"]) == (3, "/a", "info")


def test_text_log_lines() -> None:
    assert TextFormatter().format(_record(items=3)).endswith("name: cycle items=3")


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_tracebacks_are_in_the_log(
    formatter: logging.Formatter, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        try:
            raise ValueError("the cause")
        except ValueError:
            Log("name").error("broke", with_traceback=True, job="a")
        Log("name").debug("small", x=1)
    assert "the cause" in formatter.format(caplog.records[0])
    assert caplog.records[1].levelno == logging.DEBUG


Client = TestClient[web.Request, web.Application]


class _Health:
    def __init__(self) -> None:
        self.ages: Mapping[str, tuple[float, float]] = {"cycle": (1.0, 120.0)}
        self.unheard = ["a list of GPUJob"]
        self.not_acting = ["the Lease"]
        self.metrics = Metrics()
        server = HealthServer(
            self.metrics, lambda: self.ages, lambda: self.unheard, lambda: self.not_acting
        )
        self.application = server.application()


@pytest.fixture
async def health() -> AsyncGenerator[tuple[_Health, Client]]:
    health = _Health()
    async with TestClient(TestServer(health.application)) as client:
        yield health, client


async def _get(client: Client, path: str) -> tuple[int, str]:
    async with client.get(path) as response:
        return response.status, await response.text()


async def test_alive_while_cycles_and_watches_are_young(health: tuple[_Health, Client]) -> None:
    state, client = health
    assert (await _get(client, "/healthz"))[0] == 200
    state.ages = {"cycle": (1.0, 120.0), "watch": (301.0, 300.0)}
    status, text = await _get(client, "/healthz")
    assert status == 503
    assert json.loads(text)["ageSeconds"]["watch"] == 301.0
    assert json.loads(text)["late"] == ["watch"]


async def test_ready_when_it_hears_of_every_kind_and_acts(
    health: tuple[_Health, Client],
) -> None:
    state, client = health
    status, text = await _get(client, "/readyz")
    assert status == 503
    assert json.loads(text)["waitingFor"] == ["a list of GPUJob", "the Lease"]
    assert (await _get(client, "/readyz/events"))[0] == 503
    state.unheard = []
    assert (await _get(client, "/readyz"))[0] == 503
    assert (await _get(client, "/readyz/events"))[0] == 200
    state.not_acting = []
    assert (await _get(client, "/readyz"))[0] == 200


async def test_metrics_text(health: tuple[_Health, Client]) -> None:
    state, client = health
    state.metrics.leader.set(1)
    status, text = await _get(client, "/metrics")
    assert status == 200
    assert "gpujob_leader 1.0" in text
    names = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE gpujob")}
    assert all(name.startswith("gpujob_") for name in names)


def _main(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["gpujob-operator", *arguments])
    return command.main()


@pytest.mark.parametrize(("changed", "code"), [(False, 0), (True, 1)])
def test_replay_command(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changed: bool,
    code: int,
) -> None:
    snapshot, now = make_snapshot(make_job()), after(10)
    decided: Any = Plan() if changed else plan(snapshot, now)
    path = CycleDumps(tmp_path).write(snapshot, now, decided)
    assert _main(monkeypatch, "replay", str(path)) == code
    assert capsys.readouterr().out.startswith("--- decided then" if changed else "same")


def test_replay_says_why_a_job_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    snapshot, now = make_snapshot(make_job()), after(10)
    path = CycleDumps(tmp_path).write(snapshot, now, plan(snapshot, now))
    assert _main(monkeypatch, "replay", str(path), "--why", "team/job") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("same")
    assert lines[2].startswith("Placed: n0 (GPU-0), costs ")
    assert _main(monkeypatch, "replay", str(path), "--why", "nobody") == 2
    assert "job: no job nobody" in capsys.readouterr().err


@pytest.mark.parametrize("content", [None, "{}"])
def test_replay_of_no_cycle(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_text(content)
    assert _main(monkeypatch, "replay", str(path)) == 2
    assert "gpujob-operator: " in capsys.readouterr().err


def test_run_with_a_bad_configuration_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = _file(tmp_path, "nonsense: 1")
    assert _main(monkeypatch, "run", "--configuration", str(path)) == 2
    assert "configuration.nonsense" in capsys.readouterr().err


SERVICE = [
    "run",
    "--report-service=reports",
    "--pod-address=10.0.0.7",
    "--pod-uid=u",
    "--identity=p",
]


def test_the_service_for_reports_and_the_pod_behind_it() -> None:
    options = run_options(parse_arguments([*SERVICE, "--report-listen=0.0.0.0:81"]), "host-1")
    service = ReportService("gpujob-system", "reports", 81, "p", "u", "10.0.0.7")
    assert options.report_service == service
    assert run_options(parse_arguments(["run"]), "host-1").report_service is None


@pytest.mark.parametrize("option", ["--pod-address", "--pod-uid", "--identity"])
def test_a_service_for_reports_needs_its_pod(option: str) -> None:
    arguments = [one for one in SERVICE if not one.startswith(option)]
    with pytest.raises(FieldError, match=option):
        run_options(parse_arguments(arguments), "host-1")
