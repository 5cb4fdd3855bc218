"""Checkpoints: every bit comes back, nothing damaged is ever loaded, no pickle, one owner."""

import json
import math
import os
import pickle
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from gpujob_worker.checkpoint.errors import CorruptError, FencedError, UnsavableError
from gpujob_worker.checkpoint.manifest import write_durably
from gpujob_worker.checkpoint.store import Store
from gpujob_worker.checkpoint.tree import decode_tree, encode_tree


def state_of(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {
        "step": step,
        "weights": {"a": torch.randn(40, 7, generator=generator), "b": torch.arange(5)},
        "groups": [{"lr": 1e-3 / (step + 1), "betas": (0.9, 0.999), "fused": None}],
        "state": {0: {"step": torch.tensor(float(step))}},
    }


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[k], right[k]) for k in left)
    if isinstance(left, (list, tuple)):
        pairs = zip(left, right, strict=True)
        return type(left) is type(right) and all(same(a, b) for a, b in pairs)
    return left == right and type(left) is type(right)


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    store = Store(tmp_path, attempt=1)
    commit = store.save(3, state_of(3), {"name": "job"})
    assert commit.bytes > 40 * 7 * 4
    loaded = Store(tmp_path, attempt=2).load()
    assert loaded is not None
    assert loaded.step == 3
    assert same(loaded.state, state_of(3))
    assert loaded.about["attempt"] == 1
    assert loaded.about["name"] == "job"


TREES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(max_examples=200)
@given(TREES)
def test_every_tree_comes_back(tree: Any) -> None:
    text, tensors = encode_tree(tree)
    assert same(decode_tree(text, tensors), tree)


def test_every_bit_comes_back() -> None:
    shared = torch.randn(6)
    tree: dict[str, Any] = {
        "nan": math.nan,
        "inf": -math.inf,
        "zero": -0.0,
        "payload": torch.tensor([math.nan, -0.0, math.inf]),
        "half": torch.randn(3).bfloat16(),
        "strided": torch.randn(4, 6).t(),
        "view": shared[2:],
        "tied": [shared, shared],
        "empty": [torch.empty(0), torch.empty(0, 3)],
        "words": np.array([1, 2**32 - 1], dtype=np.uint32),
        "scalar": np.float64(0.1),
        "random": random.Random(1).getstate(),
    }
    text, tensors = encode_tree(tree)
    back = decode_tree(text, tensors)
    assert math.isnan(back["nan"])
    assert math.copysign(1, back["zero"]) == -1
    assert back["inf"] == -math.inf
    assert torch.equal(back["payload"].view(torch.int32), tree["payload"].view(torch.int32))
    for name in ("half", "strided", "view"):
        assert torch.equal(back[name], tree[name])
    assert back["tied"][0] is back["tied"][1]
    assert back["empty"][1].shape == (0, 3)
    assert back["words"].dtype == np.uint32
    assert back["words"].tolist() == [1, 2**32 - 1]
    assert type(back["scalar"]) is np.float64
    assert back["random"] == tree["random"]


def test_temporary_arrays_are_not_taken_for_each_other() -> None:
    states: list[Any] = [np.random.RandomState(seed).get_state() for seed in range(20)]
    text, tensors = encode_tree(states)
    for original, back in zip(states, decode_tree(text, tensors), strict=True):
        assert np.array_equal(original[1], back[1])


def test_what_needs_pickle_is_refused_with_its_place(tmp_path: Path) -> None:
    store = Store(tmp_path, attempt=1)
    store.save(1, state_of(1))
    with pytest.raises(UnsavableError, match=r"state\.parts\[1\]: a PosixPath cannot be saved"):
        store.save(2, {"parts": [1, tmp_path]})
    assert store.steps() == [1]
    assert not list(tmp_path.glob(".step-*"))


def test_two_at_least_are_kept(tmp_path: Path) -> None:
    store = Store(tmp_path, attempt=1, keep=1)
    for step in (1, 2, 10, 9):
        store.save(step, state_of(step))
    assert store.steps() == [10, 9]


FILES = ["MANIFEST.json", "rank-0.manifest.json", "rank-0/state.json", "rank-0/state.safetensors"]


def test_no_flipped_byte_or_cut_file_is_ever_loaded(tmp_path: Path) -> None:
    source = tmp_path / "source"
    store = Store(source, attempt=1)
    store.save(1, state_of(1))
    store.save(2, state_of(2))
    pristine = {name: (source / "step-2" / name).read_bytes() for name in FILES}
    rng = random.Random(7)
    for _ in range(400):
        name = rng.choice(FILES)
        damaged = bytearray(pristine[name])
        if rng.random() < 0.7:
            at = rng.randrange(len(damaged))
            damaged[at] ^= 1 << rng.randrange(8)
        else:
            del damaged[rng.randrange(len(damaged)) :]
        (source / "step-2" / name).write_bytes(bytes(damaged))
        loaded = store.load()
        assert loaded is not None
        assert loaded.step == 1, f"a damaged {name} was loaded"
        assert same(loaded.state, state_of(1))
        (aside,) = source.glob("step-2.corrupt-*")
        aside.rename(source / "step-2")
        (source / "step-2" / name).write_bytes(pristine[name])
    loaded = store.load()
    assert loaded is not None
    assert loaded.step == 2


def test_a_checkpoint_under_another_name_is_not_that_step(tmp_path: Path) -> None:
    """Somebody renamed or copied the folder: the run would go on from a step that it never had."""
    store = Store(tmp_path, attempt=1)
    store.save(3, state_of(3))
    store.save(5, state_of(5))
    (tmp_path / "step-5").rename(tmp_path / "step-9")
    loaded = store.load()
    assert loaded is not None
    assert loaded.step == 3
    assert list(tmp_path.glob("step-9.corrupt-*"))


@pytest.mark.parametrize("linked", ["rank-0", "rank-0/state.safetensors"])
def test_a_link_is_not_followed(tmp_path: Path, linked: str) -> None:
    """What it leads to may change after the hash was taken, and may be anybody's."""
    directory, elsewhere = tmp_path / "checkpoints", tmp_path / "elsewhere"
    store = Store(directory, attempt=1)
    store.save(3, state_of(3))
    store.save(5, state_of(5))
    (directory / "step-5" / linked).rename(elsewhere)
    (directory / "step-5" / linked).symlink_to(elsewhere)
    loaded = store.load()
    assert loaded is not None
    assert loaded.step == 3


def test_a_small_file_is_replaced_and_never_rewritten(tmp_path: Path) -> None:
    """Who stops in the middle leaves the old file, and so does who reads meanwhile."""
    path, same_file = tmp_path / "FENCE", tmp_path / "the same file"
    write_durably(path, b"the old text")
    same_file.hardlink_to(path)
    write_durably(path, b"the new text")
    assert path.read_bytes() == b"the new text"
    assert same_file.read_bytes() == b"the old text"
    assert sorted(tmp_path.iterdir()) == [path, same_file]


@pytest.mark.parametrize("missing", FILES)
def test_a_missing_file_falls_back_and_says_so(tmp_path: Path, missing: str) -> None:
    store = Store(tmp_path, attempt=1)
    store.save(4, state_of(4))
    store.save(8, state_of(8))
    (tmp_path / "step-8" / missing).unlink()
    loaded = store.load()
    assert loaded is not None
    assert loaded.step == 4
    assert "step-8" in store.notes[0] or Path(missing).name in store.notes[0]
    assert "falling back" in store.notes[0]
    assert store.steps() == [4]


def test_nothing_that_verifies_is_a_fresh_start(tmp_path: Path) -> None:
    store = Store(tmp_path, attempt=1)
    assert store.load() is None
    for step in range(6):
        store.save(step, state_of(step))
        (tmp_path / f"step-{step}" / "MANIFEST.json").write_text("{}")
        assert store.load() is None
    assert len(list(tmp_path.glob("*.corrupt-*"))) == 3


class _Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.path),))


def test_a_pickle_is_never_loaded(tmp_path: Path) -> None:
    directory, sprung = tmp_path / "checkpoints", tmp_path / "sprung"
    trap = pickle.dumps(_Trap(sprung))
    store = Store(directory, attempt=1)
    store.save(5, state_of(5))
    for name in ("state.pt", "state.pkl", "rank-0/data.pkl", "rank-0/state.pt"):
        (directory / "step-5" / name).write_bytes(trap)
    for name in ("step-9", "step-7.pt"):
        (directory / name).write_bytes(trap)
    folder = directory / "step-6"
    shutil.copytree(directory / "step-5", folder)
    for name in FILES:
        (folder / name).write_bytes(trap)
    torch.save({"trap": _Trap(sprung)}, folder / "rank-0" / "state.safetensors")
    loaded = store.load()
    assert loaded is not None
    assert loaded.step == 5
    assert not sprung.exists()
    pickle.loads(trap)
    assert sprung.exists(), "the trap itself must work, or the test proves nothing"


@pytest.mark.promise("I3")
def test_an_older_attempt_is_fenced_out(tmp_path: Path) -> None:
    old = Store(tmp_path, attempt=1)
    old.save(1, state_of(1))
    new = Store(tmp_path, attempt=2)
    with pytest.raises(FencedError, match="attempt 2 owns"):
        old.save(2, state_of(2))
    with pytest.raises(FencedError):
        Store(tmp_path, attempt=1)
    assert new.steps() == [1]
    new.save(3, state_of(3))
    assert new.steps() == [3, 1]


@pytest.mark.promise("I3")
def test_the_fence_falls_between_writing_and_committing(tmp_path: Path) -> None:
    def newer_attempt(point: str) -> None:
        if point == "manifest":
            Store(tmp_path, attempt=2)

    old = Store(tmp_path, attempt=1, on_point=newer_attempt)
    with pytest.raises((FencedError, FileNotFoundError)):
        old.save(1, state_of(1))
    assert Store(tmp_path, attempt=3).steps() == []


def test_a_broken_fence_stops_everything(tmp_path: Path) -> None:
    Store(tmp_path, attempt=1)
    (tmp_path / "FENCE").write_text("?")
    with pytest.raises(Exception, match="FENCE cannot be read"):
        Store(tmp_path, attempt=2)


class _Crash(BaseException):
    pass


POINTS = ["started", "tensors", "rank manifest", "manifest", "committed"]


@pytest.mark.promise("I6")
@pytest.mark.parametrize("point", POINTS)
def test_a_crash_at_any_point_leaves_a_checkpoint(tmp_path: Path, point: str) -> None:
    def crash(reached: str) -> None:
        if reached == point:
            # As SIGKILL leaves it: no clean-up of ours runs on this copy.
            shutil.copytree(tmp_path / "a", tmp_path / "b")
            raise _Crash

    store = Store(tmp_path / "a", attempt=1)
    store.save(1, state_of(1))
    store = Store(tmp_path / "a", attempt=1, on_point=crash)
    with pytest.raises(_Crash):
        store.save(2, state_of(2))
    after = Store(tmp_path / "b", attempt=2)
    loaded = after.load()
    assert loaded is not None
    assert loaded.step == (2 if point == "committed" else 1)
    assert same(loaded.state, state_of(loaded.step))
    assert after.notes == []
    names = {path.name for path in (tmp_path / "b").iterdir()}
    assert names <= {"FENCE", "LOCK", "step-1", "step-2"}


def test_json_that_we_do_not_write_is_refused() -> None:
    for text in ("[1]", '{"$":"object"}', '{"$":"tensor","name":"none"}', "{}", "nonsense"):
        with pytest.raises(CorruptError):
            decode_tree(text, {})
    with pytest.raises(CorruptError):
        decode_tree(json.dumps({"$": "list"}), {})
