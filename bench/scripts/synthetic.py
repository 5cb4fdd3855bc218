"""Small data sets in the formats that the scripts read, drawn anew and always alike."""

import pickle
import random
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SEED = 7
CLASSES = 10
WORDS = 200

Maker = Callable[[Path], None]


def digits(train: int = 640, test: int = 160) -> Maker:
    """MNIST's files: each class is a bright square in a place of its own, and noise."""

    def make(folder: Path) -> None:
        raw = folder / "MNIST" / "raw"
        raw.mkdir(parents=True, exist_ok=True)
        for prefix, count in (("train", train), ("t10k", test)):
            rng = np.random.default_rng((SEED, count))
            labels = (rng.permutation(count) % CLASSES).astype(np.uint8)
            images = rng.integers(0, 200, (count, 28, 28), dtype=np.uint8)
            for number in range(CLASSES):
                top, left = 2 + 8 * (number // 4), 1 + 7 * (number % 4)
                images[labels == number, top : top + 7, left : left + 6] += 55
            header = struct.pack(">iiii", 2051, count, 28, 28)
            (raw / f"{prefix}-images-idx3-ubyte").write_bytes(header + images.tobytes())
            header = struct.pack(">ii", 2049, count)
            (raw / f"{prefix}-labels-idx1-ubyte").write_bytes(header + labels.tobytes())

    return make


def pictures(folders: dict[str, int], side: int) -> Maker:
    """PNG files of this side, as many as named in each folder; a folder has a colour."""

    def make(folder: Path) -> None:
        for number, (name, count) in enumerate(folders.items()):
            place = folder / name
            place.mkdir(parents=True, exist_ok=True)
            rng = np.random.default_rng((SEED, number))
            for index in range(count):
                pixels = rng.integers(0, 120, (side, side, 3), dtype=np.uint8)
                pixels[..., number % 3] += 120
                (place / f"{index:03}.png").write_bytes(_png(side, pixels))

    return make


def _png(side: int, pixels: NDArray[np.uint8]) -> bytes:
    """Chunks of a header, of rows that begin with a zero (no filter), and of nothing."""
    rows = np.insert(pixels.reshape(side, -1), 0, 0, axis=1)
    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunks = {b"IHDR": header, b"IDAT": zlib.compress(rows.tobytes()), b"IEND": b""}
    parts = [
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks.items()
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def sentences(files: dict[str, int]) -> Maker:
    """Text files with so many lines of words, in which every word tells the next one's class."""

    def make(folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        for name, lines in files.items():
            (folder / name).write_text(_text(lines))

    return make


def characters(folder: Path) -> None:
    """nanoGPT's files of a text by characters: tokens in 16 bits, and the table of characters."""
    folder.mkdir(parents=True, exist_ok=True)
    text = _text(400)
    letters = sorted(set(text))
    number = {letter: index for index, letter in enumerate(letters)}
    tokens = np.array([number[letter] for letter in text], dtype=np.uint16)
    cut = int(0.9 * len(tokens))
    tokens[:cut].tofile(folder / "train.bin")
    tokens[cut:].tofile(folder / "val.bin")
    table: dict[str, Any] = {"vocab_size": len(letters), "itos": dict(enumerate(letters))}
    (folder / "meta.pkl").write_bytes(pickle.dumps({**table, "stoi": number}))


def _text(lines: int) -> str:
    rng = random.Random(SEED)
    rows: list[str] = []
    for _ in range(lines):
        word = rng.randrange(WORDS)
        row: list[str] = []
        for _ in range(12):
            word = (3 * word + rng.randrange(4)) % WORDS
            row.append(f"w{word}")
        rows.append(" ".join(row))
    return "\n".join(rows) + "\n"
