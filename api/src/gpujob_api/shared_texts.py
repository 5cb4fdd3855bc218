"""Equal texts, held once: ten thousand objects repeat the same models, reasons and namespaces."""

from functools import lru_cache

TEXTS_MAX = 4096
# Longer ones seldom repeat, and would be held for others.
CHARACTERS_MAX = 128


def shared_text(text: str) -> str:
    """The text; the same object for equal ones that were seen lately."""
    return _shared(text) if len(text) <= CHARACTERS_MAX else text


@lru_cache(maxsize=TEXTS_MAX)
def _shared(text: str) -> str:
    return text
