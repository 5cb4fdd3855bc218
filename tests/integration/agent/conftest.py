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


def _node(folder: Path, library: Path) -> Generator[Node]:
    driver, tree = ImitatedDriver(folder, library, [ImitatedGPU()]), ProcessTree(folder / "proc")
    reader = ReaderProcess(driver, tree)
    yield Node(driver, tree, reader)
    reader.stop()


@pytest.fixture
def node(library: Path, tmp_path: Path) -> Generator[Node]:
    yield from _node(tmp_path, library)


@pytest.fixture
def old_node(old_library: Path, tmp_path: Path) -> Generator[Node]:
    """With a driver from before R510."""
    yield from _node(tmp_path, old_library)
