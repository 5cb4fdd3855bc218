"""Errors whose cause lies outside the script and may be gone at the next attempt, by their text.

The worker classifies any error of a script as the user's. The text shows whether it is one of the
network, a server, a device or a disk.
"""

import re

# A network, a server, a device, or a file system behind a network.
_OUTSIDE = re.compile(
    r"connection|connect\b|timed? ?out|timeout|unreachable|name resolution|socket|NCCL|network"
    r"|temporar|try again|unavailable|stale file|input/output|too many requests"
    r"|\b(?:408|425|429|50[0234])\b|HTTPError|SSLError|broken pipe"
    r"|ECC error|devices are busy|system not yet initialized|hardware error"
    # Other processes of the run, in the words of torch, Horovod and Ray.
    r"|Rendezvous\w*Error|\bDist(?:Backend|Network|Store)Error|Stop_waiting|monitoredBarrier"
    r"|HorovodInternalError|\b(?:actor|worker|node) (?:has |is )?(?:died|dead)\b",
    re.IGNORECASE,
)
# A GPU that breaks, or a kernel that goes wrong on any.
_DEVICE = re.compile(
    r"CUDA error: (?:unspecified launch failure|unknown error|the launch timed out)|GPU is lost",
    re.IGNORECASE,
)
# A limit that others may fill and leave. Before the first step it is rather the script's own.
_LIMIT = re.compile(r"no space left|quota|too many|\block(?:ed)?\b", re.IGNORECASE)
# A refusal, or an error of the script that only mentions one of these.
_LASTING = re.compile(
    r"^(?:\w+\.)*(?:ModuleNotFoundError|ImportError|SyntaxError|IndentationError|NameError"
    r"|UnboundLocalError|AttributeError|TypeError|KeyError|IndexError|AssertionError"
    r"|PermissionError|FileNotFoundError)\b"
    r"|address already in use|EADDRINUSE",
    re.IGNORECASE | re.MULTILINE,
)
# A server answers that the user may not do this, or that there is no such thing.
_DENIED = re.compile(
    r"\b4(?!08|25|29)\d\d Client Error|<Response \[40[13]\]>|\bgated repo\b|GatedRepoError"
    r"|RepositoryNotFoundError|RevisionNotFoundError|Access to model \S+ is restricted"
    r"|not a valid model identifier|api_key not configured|is not logged in",
    re.IGNORECASE,
)


def is_denied(text: str) -> bool:
    """Returns whether a server refused the user's request, as it would refuse it again."""
    return _DENIED.search(text) is not None


def comes_from_outside(text: str) -> bool:
    """Returns whether the network, a server or a device caused the error, at any step."""
    return _is_one_of(text, _OUTSIDE, _DEVICE)


def may_pass(text: str) -> bool:
    """Returns whether the same error at the same step may be gone at a third attempt."""
    return _is_one_of(text, _OUTSIDE, _LIMIT)


def _is_one_of(text: str, *kinds: re.Pattern[str]) -> bool:
    text = _ends(text)
    if _LASTING.search(text) is not None or is_denied(text):
        return False
    return any(kind.search(text) is not None for kind in kinds)


def _ends(text: str) -> str:
    """Returns the first and the last line. A traceback between them names files such as
    `connection.py`.
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
    return "\n".join({lines[0]: None, lines[-1]: None})
