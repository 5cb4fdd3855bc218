"""Errors for the person at the terminal, and the time limits of requests to the API server."""

import json
import re
from collections.abc import Mapping
from typing import Any, cast

from gpujob_api.meta import GROUP

REQUEST_SECONDS_MAX = 30
PAGE_OBJECTS = 500
PAGES_MAX = 200
# The API server precedes its reasons by the object, which is known here.
_OBJECT = re.compile(
    r'^[\w.]+ "[^"]*" is (invalid|forbidden): |^\w+ in version "\w+" cannot be handled as a \w+: '
)


class UserError(Exception):
    """An error that the user can act on. The text is the whole message."""


class NotCheckedError(Exception):
    """The API server was not reached, or did not answer whether it would accept an object."""


def refusal_of(status: int, body: str, namespace: str) -> str:
    """Returns the API server's own words from its answer to a dry run, or "" if only the name is in
    use.

    Raises `NotCheckedError`.
    """
    try:
        answer: object = json.loads(body)
    except ValueError:
        answer = {}
    fields = cast("Mapping[str, Any]", answer) if isinstance(answer, dict) else {}
    message = str(fields.get("message") or body or f"status {status}")
    match status:
        case 409:
            return ""
        case 403 if "cannot create resource" in message:
            raise NotCheckedError(f"you may not create gpujobs in namespace {namespace}")
        case 400 | 403 | 404 | 422:
            return _OBJECT.sub("", message)
        case _:
            raise NotCheckedError(f"the API server answered {status} to a dry run: {message}")


def answered(where: str, method: Any, *values: Any, **arguments: Any) -> Any:
    """Returns the result of a call of the Kubernetes client. Raises `UserError` if it fails."""
    from kubernetes.client.exceptions import ApiException
    from urllib3.exceptions import HTTPError

    try:
        return method(*values, **arguments)
    except ApiException as error:
        raise UserError(explain_status(where, cast("int", error.status))) from None
    except HTTPError as error:
        # urllib3 wraps the reason in the whole request.
        reason = getattr(error, "reason", None) or error
        raise UserError(f"the API server cannot be reached: {reason}") from None


def explain_status(where: str, status: int) -> str:
    match status:
        case 404:
            return f"not found: {where} (is GPUJob installed? kubectl get crd gpujobs.{GROUP})"
        case 401:
            return "Unauthorized (401): check your kubeconfig credentials"
        case 403:
            return f"you may not read {where} (403 Forbidden)"
        case _:
            return f"the API server answered {status} to reading {where}"
