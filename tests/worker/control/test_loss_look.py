"""What a look makes of outputs of several kinds, and of those too large to be kept."""

import math
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from gpujob_worker.control.loss_look import GROUPS, Look
from gpujob_worker.control.output_sample import VALUE_BYTES, difference, samples_within

ROWS, TOTAL, TOKENS, WORDS = 2, 8, 64, 50
ERROR = 1e-2
EVERYTHING = 2**40
EVERY_OUTPUT = ["loss", "logits", "hidden", "words"]


class Language(nn.Module):
    """Predicts words; `error` is what settings do to the values before the head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body, self.head = nn.Linear(16, 16), nn.Linear(16, WORDS)
        self.targets = torch.randint(WORDS, (TOTAL, TOKENS))

    def forward(self, x: torch.Tensor, error: float = 0.0) -> dict[str, torch.Tensor]:
        hidden = self.body(x) * (1 + error)
        logits = self.head(hidden)
        words = logits.flatten(0, 1)
        loss = functional.cross_entropy(words, self.targets[: len(x)].flatten())
        return {"loss": loss, "logits": logits, "hidden": hidden, "words": words}


def look_of(
    x: torch.Tensor,
    returned: Iterable[str],
    *,
    rows: int | None = None,
    kept_bytes: int = EVERYTHING,
    turn: int = 0,
    own_loss: bool = False,
    compiled: bool = False,
) -> tuple[Look, float]:
    """The look after the backward of a call that returns some outputs, and the exact change."""
    module = Language()
    few, total = (x, None) if rows is None else (x[:rows], TOTAL)
    with torch.no_grad():
        settings, plain = module(few, ERROR), module(few)
    ours, written = ([outputs[name] for name in returned] for outputs in (settings, plain))
    samples = samples_within(ours, kept_bytes, rows=rows, total=total, turn=turn)
    kept = [sample.of(one) for sample, one in zip(samples, ours, strict=True)]
    both = zip(samples, kept, written, strict=True)
    look = Look(
        samples, [difference(*each) for each in both], 1.0 if rows is None else rows / TOTAL
    )
    call: Any = torch.compile(module, backend="aot_eager") if compiled else module
    outputs = call(x)
    loss = outputs["loss"]
    if own_loss:
        loss = functional.cross_entropy(outputs["words"], module.targets.flatten())
    look.watch([outputs[name] for name in returned], loss.detach)
    loss.backward()
    look.forget_hooks()
    return look, float(settings["loss"] - plain["loss"]) / float(loss.detach())


@pytest.mark.parametrize("rows", [None, ROWS])
@pytest.mark.parametrize(
    "returned",
    [
        ["loss", "logits"],
        ["logits", "loss"],
        ["loss", "logits", "hidden"],
        ["logits", "hidden"],
        ["logits", "logits"],
        ["hidden", "loss"],
        ["words"],
    ],
    ids=" ".join,
)
def test_each_change_counts_once(returned: list[str], rows: int | None) -> None:
    look, exact = look_of(torch.randn(TOTAL, TOKENS, 16), returned, rows=rows)
    assert look.found(0.0)[0] == pytest.approx(exact, rel=0.1)
    assert look.failure is None


def test_logits_count_where_the_script_computes_its_own_loss() -> None:
    look, exact = look_of(torch.randn(TOTAL, TOKENS, 16), ["loss", "logits"], own_loss=True)
    assert look.found(0.0)[0] == pytest.approx(exact, rel=0.1)


@pytest.mark.parametrize(("rows", "own_loss"), [(None, False), (None, True), (ROWS, True)], ids=str)
def test_outputs_of_compiled_code_that_the_loss_does_not_use_count_for_nothing(
    rows: int | None, own_loss: bool
) -> None:
    """They have no gradient, and their hooks are called all the same."""
    torch.compiler.reset()
    x = torch.randn(TOTAL, TOKENS, 16)
    look, exact = look_of(x, EVERY_OUTPUT, rows=rows, own_loss=own_loss, compiled=True)
    assert look.failure is None
    assert look.seen
    assert look.found(0.0)[0] == pytest.approx(exact, rel=0.1)


def test_of_a_part_of_the_batch_compiled_code_with_a_loss_of_its_own_says_nothing() -> None:
    """Its logits have no gradient, and its loss is of the whole batch."""
    torch.compiler.reset()
    x = torch.randn(TOTAL, TOKENS, 16)
    look, _ = look_of(x, EVERY_OUTPUT, rows=ROWS, compiled=True)
    assert (look.seen, look.failure) == (False, None)


@pytest.mark.parametrize("rows", [None, 1, ROWS])
def test_samples_of_large_outputs_find_together_what_all_values_say(rows: int | None) -> None:
    torch.manual_seed(1)
    x = torch.randn(TOTAL, TOKENS, 16)
    whole = look_of(x, ["logits"], rows=rows)[0].found(0.0)[0]
    size = (rows or TOTAL) * TOKENS * WORDS * VALUE_BYTES
    every = look_of(x, ["logits"], rows=rows, kept_bytes=size // 6)[0].samples[0].every
    assert every >= 6
    looks = [
        look_of(x, ["logits"], rows=rows, kept_bytes=size // 6, turn=turn)[0]
        for turn in range(every)
    ]
    found = [look.found(0.0) for look in looks]
    assert sum(change for change, _ in found) / every == pytest.approx(whole, rel=1e-4)
    assert all(abs(change - whole) < 4 * chance for change, chance in found)


@pytest.mark.parametrize(("noise", "beyond_chance"), [(True, False), (False, True)])
def test_one_row_tells_chance_from_a_change_by_its_many_values(
    noise: bool, beyond_chance: bool
) -> None:
    torch.manual_seed(2)
    logits = torch.zeros(1, TOKENS, WORDS, requires_grad=True)
    output = logits * 1
    samples = samples_within([output], 4096, rows=None, total=None, turn=0)
    assert samples[0].every > 1
    loss = functional.cross_entropy(output.flatten(0, 1), torch.zeros(TOKENS, dtype=torch.long))
    shape = samples[0].of(output.detach()).shape
    # The loss asks for the first word: what lowers the values of all words but the first helps.
    first = samples[0].of(torch.eye(WORDS)[0].expand(1, TOKENS, WORDS))
    difference = torch.randn(shape).double() if noise else first - 1
    look = Look(samples, [difference], 1.0)
    look.watch(output, loss.detach)
    loss.backward()
    change, chance = look.found(0.0)
    assert (abs(change) > 3 * chance) is beyond_chance


@given(
    rows=st.integers(1, 4),
    sizes=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    kept=st.integers(1, 2000),
)
def test_samples_of_as_many_turns_see_every_value_once(
    rows: int, sizes: list[int], kept: int
) -> None:
    shape = torch.Size([rows, *sizes])
    output = torch.arange(shape.numel(), dtype=torch.float64).reshape(shape)

    def sample(turn: int) -> torch.Tensor:
        return samples_within([output], kept * VALUE_BYTES, rows=rows, total=2 * rows, turn=turn)[
            0
        ].of(output)

    every = samples_within([output], kept * VALUE_BYTES, rows=rows, total=2 * rows, turn=0)[0].every
    seen = torch.cat([sample(turn).flatten() for turn in range(every)])
    assert sorted(seen.tolist()) == output.flatten().tolist()
    assert every == 1 or all(size == 1 or math.gcd(every, size) == 1 for size in sizes)


def test_a_loss_is_kept_beside_large_logits() -> None:
    outputs = [torch.zeros(()), torch.zeros(4, 1024, 512)]
    small, large = samples_within(outputs, 2**20, rows=None, total=None, turn=3)
    assert small.every == 1
    assert large.every > 1
    assert large.of(outputs[1]).numel() * VALUE_BYTES <= 2**20
    assert large.of(outputs[1]).numel() > GROUPS
