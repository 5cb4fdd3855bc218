"""Pictures of terminals: what a command printed is in them, and they load nothing."""

import os
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench.pictures import Ended, Recording, in_terminal
from bench.screenshots import PAGES, PICTURE_BYTES_MAX, WIDTH
from tests.harness.repository import ROOT

PICTURES = sorted((ROOT / "docs" / "images").glob("*.svg"))
SCREENSHOTS = sorted((ROOT / "docs" / "images").glob("*.png"))
NAMESPACE = "http://www.w3.org/2000/svg"


def text_of(svg: str) -> str:
    return "".join(ElementTree.fromstring(svg).itertext()).replace("\xa0", " ")


@pytest.mark.parametrize("path", PICTURES, ids=lambda path: path.stem)
def test_a_picture_is_whole_and_loads_nothing(path: Path) -> None:
    svg = path.read_text(encoding="utf-8")
    assert "$ " in text_of(svg)
    assert re.findall(r"https?://|url\((?!#)|<script|<image|href", svg.replace(NAMESPACE, "")) == []


def test_every_picture_is_shown_and_was_taken_of_a_run_that_worked() -> None:
    documents = "".join(path.read_text(encoding="utf-8") for path in ROOT.glob("docs/guides/*.md"))
    documents += (ROOT / "README.md").read_text(encoding="utf-8")
    assert {path.stem for path in PICTURES} == {"jobs", "laptop", "report"}
    assert [path.name for path in PICTURES if f"images/{path.name})" not in documents] == []
    texts = "".join(text_of(path.read_text(encoding="utf-8")) for path in PICTURES)
    assert "Traceback" not in texts
    assert "the worker failed" not in texts


def test_screenshots_are_small_and_shown() -> None:
    guide = (ROOT / "docs" / "guides" / "dashboard.md").read_text(encoding="utf-8")
    assert {path.stem for path in SCREENSHOTS} == {name for name, _ in PAGES}
    for path in SCREENSHOTS:
        content = path.read_bytes()
        assert len(content) <= PICTURE_BYTES_MAX
        assert int.from_bytes(content[16:20], "big") == WIDTH
        assert f"images/{path.name})" in guide


def test_a_recording_shows_what_was_printed_and_how_it_ended() -> None:
    recording = Recording("A title")
    recording.add("fails", Ended("\x1b[31m<red> & more\x1b[0m\n", 3))
    text = text_of(recording.svg())
    for part in ("A title", "$ fails", "<red> & more", "# exit code 3"):
        assert part in text


def test_a_command_in_a_terminal_is_stopped_once_it_printed_a_text(tmp_path: Path) -> None:
    script = (
        "test -t 1 && echo terminal; trap 'echo asked; exit 7' TERM; echo ready; sleep 3 & wait"
    )
    ended = in_terminal(f'sh -c "{script}"', dict(os.environ), tmp_path, stop="ready")
    assert ended == Ended("terminal\nready\nasked\n", 7)
