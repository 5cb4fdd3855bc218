"""The imitated driver, built once for each run of the tests."""

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpujob_api.gpunode import GPU
from tests.harness.imitated_nvml import ImitatedDriver, ImitatedGPU, build_library
from tests.harness.imitated_nvml.agent_node import ImitatedReading, ProcessTree, ReaderProcess


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("nvml"))


@pytest.fixture(scope="session")
def old_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_library(tmp_path_factory.mktemp("old-nvml"), old=True)


@dataclass(slots=True)
class Node:
    """A node with one H100 and what an agent reads of it."""

    driver: ImitatedDriver
    tree: ProcessTree
    reader: ReaderProcess

    @property
    def gpu(self) -> ImitatedGPU:
        return self.driver.gpus[0]

    def read(self) -> ImitatedReading:
        return self.reader.read()

    def read_gpu(self, index: int = 0) -> GPU:
        return self.read().gpus[index]


def _reader(folder: Path, library: Path) -> Generator[ReaderProcess]:
    reader = ReaderProcess(ImitatedDriver(folder, library))
    yield reader
    reader.stop()


@pytest.fixture(scope="session")
def reader(library: Path) -> Generator[ReaderProcess]:
    yield from _reader(library.parent, library)


@pytest.fixture(scope="session")
def old_reader(old_library: Path) -> Generator[ReaderProcess]:
    yield from _reader(old_library.parent, old_library)


def _node(reader: ReaderProcess, library: Path, tmp_path: Path) -> Node:
    driver = ImitatedDriver(library.parent, library, [ImitatedGPU()])
    tree = ProcessTree(tmp_path / "proc")
    reader.begin(driver, tree)
    return Node(driver, tree, reader)


@pytest.fixture
def node(reader: ReaderProcess, library: Path, tmp_path: Path) -> Node:
    return _node(reader, library, tmp_path)


@pytest.fixture
def old_node(old_reader: ReaderProcess, old_library: Path, tmp_path: Path) -> Node:
    """With a driver from before R510."""
    return _node(old_reader, old_library, tmp_path)
