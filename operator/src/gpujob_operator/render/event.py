"""Events on a job or a service: `kubectl describe` shows its history with numbers."""

import hashlib
from datetime import datetime
from typing import Any

from gpujob_api.codec import format_time
from gpujob_api.manifest import GPUJOB
from gpujob_api.meta import API_VERSION, MESSAGE_CHARACTERS_MAX, Metadata
from gpujob_api.visible import visible
from gpujob_operator.decide.model.plan import EventNote

REPORTER = "gpujob-operator"


def event(
    metadata: Metadata, note: EventNote, now: datetime, kind: str = GPUJOB.kind
) -> dict[str, Any]:
    """Returns a core/v1 Event.

    Its name is derived from its content, so that a retry does not duplicate it.
    """
    content = f"{metadata.uid}/{note.reason}/{note.message}/{format_time(now)}"
    digest = hashlib.sha256(content.encode()).hexdigest()[:16]
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata.name[:200]}.{digest}",
            "namespace": metadata.namespace or "default",
        },
        "involvedObject": {
            "apiVersion": API_VERSION,
            "kind": kind,
            "name": metadata.name,
            "namespace": metadata.namespace,
            "uid": metadata.uid,
            "resourceVersion": metadata.resource_version,
        },
        "reason": note.reason,
        "message": visible(note.message[:MESSAGE_CHARACTERS_MAX]),
        "type": note.type.value,
        "firstTimestamp": format_time(now),
        "lastTimestamp": format_time(now),
        "count": 1,
        "reportingComponent": REPORTER,
        "reportingInstance": REPORTER,
        "source": {"component": REPORTER},
    }
