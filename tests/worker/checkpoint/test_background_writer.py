"""Writes beside the training: what was staged is what is committed, whatever happens meanwhile."""

import errno
import resource
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from gpujob_worker.checkpoint.background_writer import BackgroundWriter, CancelledError
from gpujob_worker.checkpoint.errors import FencedError, UnsavableError
from gpujob_worker.checkpoint.staging import NoRoomError, StagingBuffer
from gpujob_worker.checkpoint.store import Store
from gpujob_worker.checkpoint.tensor_file import write_tensors
from gpujob_worker.checkpoint.tree import encode_tree
from tests.harness.checkpoint_process import SlowStore, big_state, dies_while_writing
from tests.harness.worker_process import forkserver

pytestmark = pytest.mark.timeout(240)
POINTS = ["started", "piece-1", "piece-2", "tensors", "rank manifest", "manifest", "committed"]


@pytest.mark.promise("I6")
@pytest.mark.parametrize("point", POINTS)
def test_sigkill_at_any_point_leaves_a_whole_checkpoint(tmp_path: Path, point: str) -> None:
    process = forkserver.Process(target=dies_while_writing, args=(tmp_path, point))
    process.start()
    process.join(120.0)
    assert process.exitcode == -signal.SIGKILL
    after = Store(tmp_path, attempt=2)
    loaded = after.load()
    assert loaded is not None
    assert loaded.step == (2 if point == "committed" else 1)
    assert torch.equal(loaded.state["weights"], big_state(loaded.step)["weights"])
    assert after.notes == []
    assert {path.name for path in tmp_path.iterdir()} <= {"FENCE", "LOCK", "step-1", "step-2"}


def test_what_is_committed_is_the_state_when_it_was_staged(tmp_path: Path) -> None:
    store, staging = SlowStore(tmp_path), StagingBuffer()
    weights = torch.arange(8.0).reshape(2, 4).t()
    odd = {"flags": torch.tensor([True, False]), "none": torch.empty(0, 3), "one": torch.tensor(7)}
    text, tensors = encode_tree({"weights": weights, "odd": odd, "tied": [weights, weights]})
    writer = BackgroundWriter(store)
    writer.start(4, text, staging.stage(tensors), {})
    expected = weights.clone()
    weights.zero_()
    odd["one"].add_(1)
    assert writer.busy
    assert writer.take() is None
    store.goes_on.set()
    assert writer.wait(60.0)
    written = writer.take()
    assert written is not None
    assert written.commit is not None
    assert written.commit.step == 4
    assert writer.take() is None, "a result is told once"
    loaded = Store(tmp_path, attempt=2).load()
    assert loaded is not None
    assert torch.equal(loaded.state["weights"], expected)
    assert loaded.state["odd"]["one"] == 7
    assert loaded.state["odd"]["none"].shape == (0, 3)
    assert loaded.state["tied"][0] is loaded.state["tied"][1]


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.ENOSPC, "No space left on device"),
        FencedError("attempt 2 owns it"),
        RuntimeError("anything"),
    ],
)
def test_an_error_is_kept_for_who_asks(tmp_path: Path, error: Exception) -> None:
    store = SlowStore(tmp_path, fails=error)
    store.goes_on.set()
    writer = BackgroundWriter(store)
    writer.start(1, *encode_tree({"a": torch.ones(3)}), {})
    assert writer.wait(60.0)
    written = writer.take()
    assert written is not None
    assert written.error is error
    assert written.commit is None


def test_a_full_disk_leaves_what_was_committed_and_no_rest(tmp_path: Path) -> None:
    """The kernel itself refuses to write on: more than the limit on a file's size."""
    store = Store(tmp_path, attempt=1)
    store.save(1, {"a": torch.ones(3)})
    writer = BackgroundWriter(store)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    plain = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
    try:
        writer.start(2, *encode_tree(big_state(2)), {})
        assert writer.wait(60.0)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, plain)
    written = writer.take()
    assert written is not None
    assert isinstance(written.error, OSError)
    assert written.error.errno == errno.EFBIG
    assert store.steps() == [1]
    assert not list(tmp_path.glob(".step-*"))
    writer.start(3, *encode_tree(big_state(3)), {})
    assert writer.wait(60.0)
    assert store.steps() == [3, 1]


def test_a_cancelled_write_leaves_nothing(tmp_path: Path) -> None:
    store = SlowStore(tmp_path)
    writer = BackgroundWriter(store)
    writer.start(2, *encode_tree(big_state(2)), {})
    writer.cancel()
    store.goes_on.set()
    assert writer.wait(60.0)
    written = writer.take()
    assert written is not None
    assert isinstance(written.error, CancelledError)
    assert store.steps() == []
    assert not list(tmp_path.glob(".step-*"))


def test_the_file_is_one_that_others_read(tmp_path: Path) -> None:
    tensors = {
        "half": torch.randn(3, 5).bfloat16(),
        "flag": torch.tensor(True),
        "strided": torch.randn(4, 6).t(),
        "complex": torch.randn(3, dtype=torch.complex64).conj(),
        "big": torch.arange(5 << 20, dtype=torch.int32),
        "empty": torch.empty(2, 0),
    }
    known = write_tensors(tmp_path / "file", tensors, lambda size: None)
    assert known["bytes"] == (tmp_path / "file").stat().st_size
    read = load_file(tmp_path / "file")
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


def test_what_has_no_name_in_the_format_is_refused_with_its_place() -> None:
    sparse = torch.eye(3).to_sparse()
    with pytest.raises(UnsavableError, match=r"state\.parts\.model: a tensor of torch\.float32 in"):
        encode_tree({"parts": {"model": sparse}})


def test_a_copy_without_room_is_refused_with_numbers() -> None:
    staging = StagingBuffer(lambda: 1000)
    with pytest.raises(NoRoomError, match="a copy of 630 bytes takes more than half of the 1000"):
        staging.stage({"a": torch.ones(150)})
    staged = staging.stage({"a": torch.ones(100)})
    assert torch.equal(staged["a"], torch.ones(100))


def test_prepared_memory_is_used_again() -> None:
    staging = StagingBuffer()
    tensors = {"a": torch.ones(1000), "b": torch.ones(7, dtype=torch.float64)}
    staging.prepare(tensors)
    first = staging.stage(tensors)
    address = min(tensor.data_ptr() for tensor in first.values())
    second = staging.stage({"a": torch.zeros(1000), "b": tensors["b"]})
    assert min(tensor.data_ptr() for tensor in second.values()) == address
    assert torch.equal(first["a"], torch.zeros(1000)), "the copy before is gone"
    assert staging.size_bytes < 1.2 * (4000 + 56) + 4096
