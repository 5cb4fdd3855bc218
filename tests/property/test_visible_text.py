"""Words of workers, users and API servers control no terminal, log, condition or event."""

import io
import json
import logging
import unicodedata
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.codec import encode
from gpujob_api.gpujob import GPUJobStatus
from gpujob_api.manifest import gpujob_from_manifest
from gpujob_api.report import Report
from gpujob_api.settings import Settings
from gpujob_api.visible import visible, visible_line
from gpujob_operator.act.trials import Refusals
from gpujob_operator.decide.model.conditions import ConditionWriter
from gpujob_operator.decide.model.plan import CreatePod, EventNote
from gpujob_operator.read.pods import pod_view
from gpujob_operator.render.event import event
from gpujob_operator.telemetry.logs import TextFormatter
from kubectl_gpujob.screen import Screen
from kubectl_gpujob.verbs import report, why
from kubectl_gpujob.verbs.list import WIDE, cells
from tests.harness.builders import T0, make_job, make_snapshot, placed
from tests.harness.cli_jobs import NOW, manifest

pytestmark = pytest.mark.promise("I15")

# The clipboard, a cleared screen, a line that is written over, reversed letters, a C1 introducer.
ATTACK = "x\x1b]52;c;Y3VybA==\x07\x1b[2J\rSucceeded\u202egnirts\x9b31m"
TEXTS = st.one_of(st.just(ATTACK), st.text(max_size=60), st.text("\x1b\r\x9b\u202ea\n", max_size=9))


def controls(text: str, allowed: str = "\n\t") -> list[str]:
    bidirectional = ("LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI")
    return [
        c
        for c in text
        if c not in allowed
        and (unicodedata.category(c) == "Cc" or unicodedata.bidirectional(c) in bidirectional)
    ]


def strings(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    parts: list[Any] = list(value.values()) if isinstance(value, dict) else []
    parts = value if isinstance(value, list) else parts
    return [text for part in parts for text in strings(part)]


@given(TEXTS)
def test_text_is_made_visible_once_and_keeps_its_length(text: str) -> None:
    shown = visible(text)
    assert controls(shown) == []
    assert len(shown) == len(text)
    assert visible(shown) == shown
    assert controls(visible_line(text), "") == []


@given(st.text(st.characters(categories=["L", "N", "P", "S"]) | st.sampled_from(" \n\t")))
def test_letters_lines_and_tabs_of_every_language_stay(text: str) -> None:
    assert visible(text) == text


@given(TEXTS)
def test_a_report_has_no_controls(text: str) -> None:
    failure = {"failureClass": "Unknown", "message": text}
    body = {"attempt": 1, "phase": "training", "device": text, "torchVersion": text}
    found = Report.from_text(json.dumps({**body, "explain": [text], "failure": failure}))
    assert [one for one in strings(encode(found)) if controls(one)] == []


@given(TEXTS)
def test_what_a_pod_says_has_no_controls(text: str) -> None:
    waiting = {"name": "worker", "state": {"waiting": {"reason": text, "message": text}}}
    ended = {"name": "worker", "state": {"terminated": {"exitCode": 1, "message": text}}}
    for state in (waiting, ended):
        pod = pod_view(
            {
                "metadata": {"name": "job-1-0", "namespace": "team", "uid": "u"},
                "spec": {},
                "status": {"phase": "Pending", "message": text, "containerStatuses": [state]},
            }
        )
        assert controls(pod.message + pod.reason + pod.termination_text) == []


@given(TEXTS)
def test_conditions_events_and_refusals_have_no_controls(text: str) -> None:
    writer = ConditionWriter(make_job(), GPUJobStatus(), T0)
    writer.set("X", True, "X", text)
    assert controls(writer.conditions[0].message) == []
    job = placed(make_job())
    assert controls(event(job.metadata, EventNote("X", text), T0)["message"]) == []
    refusals = Refusals()
    refusals.refused(CreatePod(job, 0, Settings()), text)
    (refused,) = refusals.tell(make_snapshot(job)).refused_pods
    assert controls(refused.message) == []


@given(TEXTS)
def test_a_log_line_is_one_line(text: str) -> None:
    record = logging.LogRecord("x", logging.INFO, "", 0, text, None, None)
    record.gpujob_keys = {"error": text}
    assert controls(TextFormatter().format(record), "") == []


@pytest.mark.parametrize("of", [why, report])
def test_nothing_that_a_worker_wrote_controls_the_viewers_terminal(of: Any) -> None:
    written = io.StringIO()
    screen = Screen(written, written, 200, is_terminal=True)
    measurement = {
        "memoryBytes": 1,
        "utilizationPercent": 1,
        "samples": 1,
        "device": ATTACK,
        "torchVersion": ATTACK,
    }
    failure = {"failureClass": "Unknown", "message": ATTACK}
    summary = dict.fromkeys(("where", "speed", "memory", "cost", "reason"), ATTACK)
    status = {"measurement": measurement, "failure": failure, "summary": summary}
    status |= {"explain": [ATTACK], "phase": "Failed", "attempt": 1}
    job = gpujob_from_manifest(manifest(status=status))
    rows = why.rows(job, None, NOW) if of is why else report.rows(job, NOW)
    screen.rows("title", [*rows, ("label", ATTACK)])
    screen.table([cells(job, NOW)], WIDE)
    screen.csv([cells(job, NOW)], WIDE)
    screen.line(ATTACK)
    screen.note(ATTACK)
    shown = written.getvalue()
    assert "Succeeded" in shown, "the words themselves are shown"
    assert controls(shown) == []
