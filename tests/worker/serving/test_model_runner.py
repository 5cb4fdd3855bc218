"""Batches are put together, padded, taken apart, and searched for the requests that fail."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.model_runner import ModelRunner, OutputError
from tests.worker.serving.backends import POISON, Doubling, Failing, samples, values


def outcomes(runner: ModelRunner, *requests: Tensors) -> list[list[float] | str]:
    found = runner.run(requests).outcomes
    return [str(one) if isinstance(one, Exception) else values(one) for one in found]


def test_each_request_gets_its_own_samples() -> None:
    backend = Doubling()
    executed = ModelRunner(backend).run([samples(1, 2), samples(3), samples(4, 5, 6)])
    assert executed.size == 6
    assert backend.batches == [[1, 2, 3, 4, 5, 6]]
    found = [values(one) for one in executed.outcomes if not isinstance(one, Exception)]
    assert found == [[2, 4], [6], [8, 10, 12]]


def test_a_batch_is_padded_with_its_last_sample() -> None:
    backend = Doubling(sizes=(2, 8))
    executed = ModelRunner(backend).run([samples(1, 2), samples(3)])
    assert executed.size == 8
    assert backend.batches == [[1, 2, 3, 3, 3, 3, 3, 3]]
    found = [values(one) for one in executed.outcomes if not isinstance(one, Exception)]
    assert found == [[2, 4], [6]]


def test_a_single_request_is_not_copied() -> None:
    class Same(Doubling):
        def run(self, inputs: Tensors) -> Tensors:
            return {"y": inputs["x"]}

    request = samples(1, 2)
    (outcome,) = ModelRunner(Same()).run([request]).outcomes
    assert not isinstance(outcome, Exception)
    assert outcome["y"].data_ptr() == request["x"].data_ptr()


def test_inputs_stay_as_they_are() -> None:
    request, other = samples(1, 2), samples(3)
    ModelRunner(Doubling(sizes=(8,))).run([request, other])
    assert values({"y": request["x"]}) == [1, 2]
    assert values({"y": other["x"]}) == [3]


@given(
    counts=st.lists(st.integers(1, 4), min_size=1, max_size=8),
    poisoned=st.sets(st.integers(0, 7)),
    memory=st.integers(1, 20),
    sizes=st.sampled_from([None, (1, 2, 4, 8, 32)]),
)
def test_only_the_requests_at_fault_fail(
    counts: list[int], poisoned: set[int], memory: int, sizes: tuple[int, ...] | None
) -> None:
    backend = Failing(sizes, memory_samples=memory)
    runner = ModelRunner(backend)
    requests = [
        samples(*[POISON if index in poisoned else 10 * index + n for n in range(count)])
        for index, count in enumerate(counts)
    ]
    found = outcomes(runner, *requests)
    for index, count in enumerate(counts):
        if index in poisoned:
            assert found[index] == "poisoned"
        else:
            assert found[index] == [20 * index + 2 * n for n in range(count)]
    # Twice the requests for the faults, twice the samples for the memory.
    assert len(backend.batches) <= 2 * len(counts) + 2 * sum(counts)


def test_one_poisoned_request_of_many_is_found_in_few_executions() -> None:
    backend = Failing()
    requests = [samples(POISON if index == 77 else index) for index in range(128)]
    executed = ModelRunner(backend).run(requests)
    assert executed.size is None
    failed = [n for n, one in enumerate(executed.outcomes) if isinstance(one, Exception)]
    assert failed == [77]
    assert len(backend.batches) == 1 + 2 * math.log2(128)


def test_a_request_that_fails_alone_is_executed_once() -> None:
    backend = Failing()
    assert outcomes(ModelRunner(backend), samples(POISON, 1, 2)) == ["poisoned"]
    assert len(backend.batches) == 1


def test_after_an_out_of_memory_no_batch_is_as_large() -> None:
    backend = Failing(memory_samples=5)
    runner = ModelRunner(backend)
    assert runner.size_max is None
    assert outcomes(runner, samples(*range(16))) == [[2 * n for n in range(16)]]
    assert runner.size_max == 4
    backend.batches.clear()
    assert outcomes(runner, samples(*range(8)), samples(9)) == [[2 * n for n in range(8)], [18]]
    assert max(len(batch) for batch in backend.batches) <= 4


def test_with_fixed_sizes_the_next_smaller_one_is_used() -> None:
    backend = Failing((2, 8, 32), memory_samples=8)
    runner = ModelRunner(backend)
    assert outcomes(runner, samples(*range(20))) == [[2 * n for n in range(20)]]
    assert runner.size_max == 8


def test_without_memory_for_the_smallest_size_the_request_fails() -> None:
    for backend in (Failing(memory_samples=0), Failing((4, 8), memory_samples=0)):
        (text,) = outcomes(ModelRunner(backend), samples(1, 2, 3))
        assert isinstance(text, str)
        assert "out of memory" in text
        assert len(backend.batches) <= 4


def test_nan_is_an_answer() -> None:
    found = outcomes(ModelRunner(Doubling()), samples(math.nan), samples(1))
    assert isinstance(found[0], list)
    assert math.isnan(found[0][0])
    assert found[1] == [2]


class Reducing(Doubling):
    """Its output has no dimension of samples."""

    def run(self, inputs: Tensors) -> Tensors:
        super().run(inputs)
        return {"mean": inputs["x"].mean(0)}


class Scalar(Doubling):
    def run(self, inputs: Tensors) -> Tensors:
        return {"loss": inputs["x"].mean()}


@pytest.mark.parametrize("backend", [Reducing(), Scalar()])
def test_outputs_without_the_samples_dimension_fail_the_batch(backend: Doubling) -> None:
    executed = ModelRunner(backend).run([samples(1), samples(2), samples(3)])
    assert [type(one) for one in executed.outcomes] == [OutputError] * 3
    assert "must be that of the samples, 3; got [" in str(executed.outcomes[0])
    assert len(backend.batches) <= 1


def test_several_inputs_and_outputs_keep_their_names() -> None:
    class Both(Doubling):
        def run(self, inputs: Tensors) -> Tensors:
            return {"sum": inputs["a"] + inputs["b"], "first": inputs["a"]}

    one = {"a": torch.ones(1, 3), "b": torch.ones(1, 3)}
    two = {"a": torch.zeros(2, 3), "b": torch.ones(2, 3)}
    first, second = ModelRunner(Both()).run([one, two]).outcomes
    assert not isinstance(first, Exception)
    assert not isinstance(second, Exception)
    assert torch.equal(first["sum"], torch.full((1, 3), 2.0))
    assert torch.equal(second["first"], torch.zeros(2, 3))
