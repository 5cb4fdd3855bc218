"""Names of new jobs."""

import random
import re

from gpujob_api.gpujob import JOB_NAME_CHARACTERS_MAX

_LETTERS = "bcdfghjkmnpqrstvwxz2456789"
_SUFFIX_CHARACTERS = 5
_SUFFIX = re.compile(rf"-[{_LETTERS}]{{{_SUFFIX_CHARACTERS}}}$")


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
