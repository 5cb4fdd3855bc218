"""The page of one job: what it does and why, what was measured, and what it would lose."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from gpujob_api.gpujob import GPUJob
from gpujob_dashboard.pages.contents import NoSuchPage, Page, Section
from gpujob_dashboard.pages.job_facts import percent
from gpujob_dashboard.rights import Rights
from gpujob_dashboard.watched import State
from kubectl_gpujob.starts import start_text
from kubectl_gpujob.text import duration
from kubectl_gpujob.verbs import report, why
from kubectl_gpujob.verbs.list import cells

_COMMANDS = ("logs -f", "why", "report", "timeline", "checkpoints")


def job_page(state: State, rights: Rights, namespace: str, name: str) -> Page:
    key = (namespace, name)
    job = next(
        (one for one in state.jobs if (one.metadata.namespace, one.metadata.name) == key), None
    )
    if job is None or not rights.may_see(job):
        raise NoSuchPage(f"there is no job {namespace}/{name} that you may see")
    return Page(
        job.metadata.key,
        {
            "headline": Section("job/headline.html", _headline(job, state.now)),
            "reasons": Section("job/rows.html", _why(job, state)),
            "report": Section("job/report.html", _report(job, state.now)),
            "attempts": Section("job/attempts.html", _attempts(job, state.now)),
            "more": Section("job/more.html", _more(job)),
        },
        "/",
    )


def _headline(job: GPUJob, now: datetime) -> Mapping[str, Any]:
    state = why.state(job, now)
    return {
        "text": state[:1].upper() + state[1:],
        "cells": {name.lower(): cell for name, cell in cells(job, now).items()},
        "percent": percent(job),
        "observed": job.status.observed_at,
    }


def _why(job: GPUJob, state: State) -> Mapping[str, Any]:
    place = why.position(job, state.jobs)
    start = start_text(job, state.jobs, state.now)
    return {"title": "Why", "rows": _once(why.rows(job, place, state.now, start))}


def _report(job: GPUJob, now: datetime) -> Mapping[str, Any]:
    return {"rows": _once(report.rows(job, now)), "comparison": report.comparison(job)}


def _once(rows: Sequence[tuple[str, str]]) -> Sequence[tuple[str, str]]:
    """Returns the rows with a label that repeats left empty."""
    labels = ["", *(label for label, _ in rows)]
    return [
        ("" if label == labels[number] else label, text)
        for number, (label, text) in enumerate(rows)
    ]


def _attempts(job: GPUJob, now: datetime) -> Mapping[str, Any]:
    """Returns the lane of the job: the wait before the first start, and the time since then."""
    created, started = job.metadata.creation_timestamp, job.status.started_at
    end = job.status.finished_at or now
    parts: list[Mapping[str, Any]] = []
    if created is not None:
        parts.append(_part("waiting", "waited", created, started or end))
    if started is not None:
        latest = job.status.attempt_started_at
        if latest is not None and latest > started:
            parts.append(_part("earlier", "earlier attempts", started, latest))
        parts.append(_part("latest", f"attempt {job.status.attempt}", latest or started, end))
    whole = sum(part["seconds"] for part in parts) or 1.0
    at = 0.0
    placed: list[Mapping[str, Any]] = []
    for part in parts:
        width = 100 * part["seconds"] / whole
        placed.append({**part, "start": round(at, 2), "width": round(width, 2)})
        at += width
    return {"parts": placed}


def _part(kind: str, name: str, start: datetime, end: datetime) -> Mapping[str, Any]:
    seconds = max((end - start).total_seconds(), 0.0)
    # Whole minutes of a job that lives, so that the page does not change every second.
    rounded = seconds if seconds < 120 else 60 * round(seconds / 60)
    return {"kind": kind, "name": name, "seconds": seconds, "text": duration(round(rounded))}


def _more(job: GPUJob) -> Mapping[str, Any]:
    name, namespace = job.metadata.name, job.metadata.namespace
    return {
        "commands": [
            f"kubectl gpujob {verb.split()[0]} {name} -n {namespace}{verb[len(verb.split()[0]) :]}"
            for verb in _COMMANDS
        ],
        "yaml": f"/job/{namespace}/{name}/yaml",
    }
