"""Equal texts are one object."""

from gpujob_api.codec import decode
from gpujob_api.decoding import CHARACTERS_MAX, shared_text
from gpujob_api.meta import Metadata


def equal_text(text: str) -> str:
    """The same, as another object."""
    return "".join([text[:1], text[1:]])


def test_equal_texts_are_one_object() -> None:
    text = "NVIDIA H100 80GB HBM3"
    assert equal_text(text) is not text
    assert shared_text(equal_text(text)) is shared_text(equal_text(text))


def test_a_long_text_is_not_kept() -> None:
    text = "x" * (CHARACTERS_MAX + 1)
    assert shared_text(text) is text
    assert shared_text(equal_text(text)) is not text


def test_nouns_that_were_read_have_their_texts_in_common() -> None:
    one, other = (decode(Metadata, {"name": equal_text("some-name")}) for _ in range(2))
    assert one.name is other.name
