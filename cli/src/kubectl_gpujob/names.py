"""Names of new jobs."""

import random
import re

from gpujob_api.bounds import LABEL_PATTERN, shown
from gpujob_api.gpujob import JOB_NAME_CHARACTERS_MAX
from kubectl_gpujob.errors import UsageError

_LETTERS = "bcdfghjkmnpqrstvwxz2456789"
_SUFFIX_CHARACTERS = 5
_NAME = re.compile(LABEL_PATTERN)
_SUFFIX = re.compile(rf"-[{_LETTERS}]{{{_SUFFIX_CHARACTERS}}}$")


def check_name(name: str, option: str) -> None:
    """Raises `UsageError` if a job cannot have this name, with one that is like it."""
    if len(name) <= JOB_NAME_CHARACTERS_MAX and _NAME.fullmatch(name):
        return
    like = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:JOB_NAME_CHARACTERS_MAX].strip("-")
    raise UsageError(
        f"{option}: must have at most {JOB_NAME_CHARACTERS_MAX} lower case letters, digits and -, "
        f"because pod names append the attempt and the rank; got {shown(name)}"
        f"{f', try {like}' if like else ''}"
    )


def new_name(like: str) -> str:
    """Returns a name that begins like the text and ends with random letters.

    The letters of an earlier name are replaced, so that copies of copies do not grow.
    """
    base = re.sub(r"[^a-z0-9]+", "-", _SUFFIX.sub("", like.lower())).strip("-")
    base = base[: JOB_NAME_CHARACTERS_MAX - _SUFFIX_CHARACTERS - 1].strip("-") or "job"
    if base[0].isdigit():
        base = f"job-{base}"[: JOB_NAME_CHARACTERS_MAX - _SUFFIX_CHARACTERS - 1]
    letters = random.choices(_LETTERS, k=_SUFFIX_CHARACTERS)  # noqa: S311 - a name is no secret
    return f"{base}-{''.join(letters)}"
