"""Images made without an engine: what is in an archive, and that it depends on its input alone."""

import hashlib
import json
import os
import tarfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import pytest

from gpujob_local.images.archive import Image, Layer, configuration, write_archive
from gpujob_local.images.layers import cached_layer, entry_points, pack, remove_old
from gpujob_local.images.requirement_files import is_shared, select

REQUIREMENTS = """\
# made by a tool
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:aa \\
    --hash=sha256:bb
    # via gpujob
nvidia-cublas==13.4 ; sys_platform == 'linux' \\
    --hash=sha256:cc
nvidia-ml-py==13.615 \\
    --hash=sha256:dd
torch==2.15.0 \\
    --hash=sha256:ee
"""


@pytest.fixture
def layer(tmp_path: Path) -> Layer:
    path = tmp_path / "layer.tar"
    path.write_bytes(b"content")
    return Layer.of(path)


def read_json(archive: tarfile.TarFile, name: str) -> Any:
    file = archive.extractfile(name)
    assert file is not None
    return json.loads(file.read())


def test_every_blob_is_there_once_under_its_digest(tmp_path: Path, layer: Layer) -> None:
    first = Image(("docker.io/library/a:1", "docker.io/library/a:dev"), (layer,), user="65532")
    second = Image(("docker.io/library/b:1",), (layer, layer), command=("run",))
    with tarfile.open(write_archive((first, second), "amd64", tmp_path / "images.tar")) as archive:
        names = archive.getnames()
        assert len(names) == len(set(names))
        for name in names:
            if name.startswith("blobs/sha256/"):
                file = archive.extractfile(name)
                assert file is not None
                assert hashlib.sha256(file.read()).hexdigest() == name.rsplit("/", 1)[1]
        index = read_json(archive, "index.json")
        tags = [row["annotations"]["io.containerd.image.name"] for row in index["manifests"]]
        assert tags == [*first.names, *second.names]
        manifest = read_json(
            archive, "blobs/sha256/" + index["manifests"][0]["digest"].removeprefix("sha256:")
        )
        config = read_json(
            archive, "blobs/sha256/" + manifest["config"]["digest"].removeprefix("sha256:")
        )
        assert config["config"]["User"] == "65532"
        assert config["rootfs"]["diff_ids"] == [f"sha256:{layer.digest}"]


def test_an_image_says_what_its_dockerfile_would(layer: Layer) -> None:
    image = Image(("x",), (layer,), ("run", "--fast"), ("/init",), {"HOME": "/w"}, "1:1", "/w")
    config = configuration(image, "arm64")["config"]
    assert config["Cmd"] == ["run", "--fast"]
    assert config["Entrypoint"] == ["/init"]
    assert "HOME=/w" in config["Env"]
    assert any(entry.startswith("PATH=") for entry in config["Env"])
    assert (config["WorkingDir"], config["User"]) == ("/w", "1:1")


def test_a_layer_depends_on_its_files_alone(tmp_path: Path) -> None:
    made: list[str] = []
    for name in ("one", "two"):
        root = tmp_path / name
        root.mkdir()
        for file in ("b", "a") if name == "one" else ("a", "b"):
            (root / file).write_text(file)
        pack(root, tmp_path / f"{name}.tar", "65532:65532")
        made.append(Layer.of(tmp_path / f"{name}.tar").digest)
    assert made[0] == made[1]
    with tarfile.open(tmp_path / "one.tar") as archive:
        assert {entry.uid for entry in archive} == {65532}


def test_of_two_that_make_a_layer_at_once_one_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each would make differs, as two runs of an installer do."""
    monkeypatch.setenv("GPUJOB_CACHE", str(tmp_path))
    begun, goes_on = Event(), Event()

    def fill(root: Path) -> None:
        assert not begun.is_set()
        begun.set()
        assert goes_on.wait(60)
        (root / "log").write_text(str(root))

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cached_layer, "base", "1", fill)
        assert begun.wait(60)
        second = pool.submit(cached_layer, "base", "1", fill)
        # The other one has no file to take, and does not begin.
        assert not second.done()
        goes_on.set()
        assert first.result() == second.result() == Layer.of(first.result().path)


def test_of_what_is_cached_the_newest_and_what_is_in_use_stay(tmp_path: Path) -> None:
    ages = {"new": 10.0, "used": 20.0, "older": 7200.0, "oldest": 9000.0}
    for name, seconds in ages.items():
        (tmp_path / name).touch()
        used = time.time() - seconds
        os.utime(tmp_path / name, (used, used))
    remove_old(tmp_path.iterdir(), 3, 3600.0)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "used", "older"}
    remove_old(tmp_path.iterdir(), 1, 3600.0)
    assert {path.name for path in tmp_path.iterdir()} == {"new", "used"}


def test_torch_and_its_libraries_are_shared_and_nvml_is_not() -> None:
    text = select(REQUIREMENTS, lambda name: not is_shared(name))
    assert "numpy==2.4.6" in text
    assert "sha256:bb" in text
    assert "nvidia-ml-py" in text
    assert "torch" not in text
    assert "cublas" not in text
    shared = select(REQUIREMENTS, is_shared)
    assert shared.splitlines() == [
        "nvidia-cublas==13.4 ; sys_platform == 'linux' \\",
        "    --hash=sha256:cc",
        "torch==2.15.0 \\",
        "    --hash=sha256:ee",
    ]


def test_commands_are_those_of_the_wheel(tmp_path: Path) -> None:
    folder = tmp_path / "gpujob-0.1.0.dist-info"
    folder.mkdir()
    (folder / "entry_points.txt").write_text(
        "[console_scripts]\ngpujob-run = gpujob_worker.__main__:main\n"
    )
    assert entry_points(tmp_path) == [("gpujob-run", "gpujob_worker.__main__", "main")]
