"""Answers that are close are accepted, and every kind of wrong one is refused with its reason."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gpujob_api.serving import Accuracy
from gpujob_worker.serving.backend import Tensors
from gpujob_worker.serving.choosing.difference import difference
from gpujob_worker.serving.choosing.guard import (
    Noise,
    Reference,
    Verdict,
    cases,
    judge,
    neighbour_problem,
    noise_of,
)

SIZES = (1, 2, 4, 8)
CLASSES = 6
Run = Callable[[Tensors], Tensors]


def exact(inputs: Tensors) -> dict[str, torch.Tensor]:
    return {"scores": inputs["x"] @ weights()}


def weights() -> torch.Tensor:
    return torch.randn(12, CLASSES, generator=torch.Generator().manual_seed(1))


def reference(samples: int = 256, metric: float | None = None) -> Reference:
    inputs = {"x": torch.randn(samples, 12, generator=torch.Generator().manual_seed(2))}
    return Reference(inputs, exact(inputs), {"scores": Noise()}, metric)


def judged(run: Run, accuracy: Accuracy | None = None, samples: int = 256) -> Verdict:
    return judge(run, reference(samples), SIZES, accuracy or Accuracy())


def changed(change: Callable[[torch.Tensor], torch.Tensor]) -> Run:
    return lambda inputs: {"scores": change(exact(inputs)["scores"])}


def test_the_same_answers_are_accepted() -> None:
    verdict = judged(exact)
    assert verdict.problem is None
    assert verdict.agreement_percent == 100.0
    assert verdict.relative_error_percent == pytest.approx(0.0, abs=1e-4)


def test_rounding_is_accepted_and_its_size_is_reported() -> None:
    verdict = judged(changed(lambda scores: scores.bfloat16().float()))
    assert verdict.problem is None
    assert verdict.relative_error_percent is not None
    assert 0.05 < verdict.relative_error_percent < 0.5


def swapped(scores: torch.Tensor) -> torch.Tensor:
    return scores if len(scores) < 4 else torch.cat([scores[1:2], scores[:1], scores[2:]])


def one_sign(scores: torch.Tensor) -> torch.Tensor:
    found = scores.clone()
    flat = found.view(-1)
    largest = int(flat.abs().argmax())
    flat[largest] = -flat[largest]
    return found


def nan_at_four(scores: torch.Tensor) -> torch.Tensor:
    return scores * torch.nan if len(scores) == 4 else scores


WRONG: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "scaled": (lambda s: s * 1.05, "relative error 5.0 %, at most 2.0 % at batch 1"),
    "shifted by a row": (lambda s: s.roll(1, 0), "at batch 2"),
    "two rows swapped": (swapped, "at batch 4"),
    "classes reversed": (lambda s: s.flip(-1), "relative error"),
    "the first row for all": (lambda s: s[:1].expand_as(s).clone(), "at batch 2"),
    "less the mean of the batch": (lambda s: s - s.mean(0, keepdim=True), "relative error 100.0 %"),
    "NaN at one size": (nan_at_four, "not finite at batch 4"),
    "one sign": (one_sign, "error"),
    "half precision": (lambda s: s.half(), "type torch.float16 instead of torch.float32"),
    "a row too few": (lambda s: s[:-1], "shape [0, 6] instead of [1, 6]"),
    "zeros": (torch.zeros_like, "relative error 100.0 %"),
    "infinite": (lambda s: s / 0, "not finite"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_answer_is_refused_with_the_reason(name: str) -> None:
    change, reason = WRONG[name]
    problem = judged(changed(change)).problem
    assert problem is not None
    assert reason in problem


def test_a_missing_output_is_refused_with_the_names() -> None:
    verdict = judged(lambda inputs: {"other": exact(inputs)["scores"]})
    assert verdict.problem == "outputs other instead of scores at batch 1"


def test_the_answer_of_the_previous_batch_is_refused() -> None:
    previous: dict[int, torch.Tensor] = {}

    def stale(inputs: Tensors) -> Tensors:
        scores = exact(inputs)["scores"]
        before = previous.get(len(scores), scores)
        previous[len(scores)] = scores
        return {"scores": before}

    assert judged(stale).problem is not None


def test_a_buffer_that_the_next_call_overwrites_is_refused() -> None:
    buffers = {size: torch.empty(size, CLASSES) for size in SIZES}

    def reusing(inputs: Tensors) -> Tensors:
        scores = exact(inputs)["scores"]
        return {"scores": buffers[len(scores)].copy_(scores)}

    assert judged(reusing).problem is not None


def test_padding_that_leaks_is_found_on_the_ragged_batch() -> None:
    def leaking(inputs: Tensors) -> Tensors:
        scores = exact(inputs)["scores"]
        repeated = bool((inputs["x"][-1] == inputs["x"][-2]).all()) if len(scores) > 1 else False
        return {"scores": scores * 1.3 if repeated else scores}

    problem = judged(leaking).problem
    assert problem is not None
    assert "at batch 1 padded to 2" in problem


def test_an_input_that_is_changed_in_place_is_refused() -> None:
    def writing(inputs: Tensors) -> Tensors:
        scores = exact(inputs)
        inputs["x"].zero_()
        return scores

    assert judged(writing).problem == "changes its input x at batch 1"


def test_an_error_names_the_batch_on_which_it_occurs() -> None:
    def failing(inputs: Tensors) -> Tensors:
        if len(inputs["x"]) == 8:
            raise RuntimeError("no kernel\nfor this size")
        return exact(inputs)

    assert judged(failing).problem == "RuntimeError at batch 8: no kernel"


def test_batch_normalization_in_training_mode_is_refused() -> None:
    torch.manual_seed(0)
    layer = torch.nn.BatchNorm1d(12)
    with torch.inference_mode():
        layer(torch.randn(64, 12) * 3 + 1)
    inputs = {"x": torch.randn(256, 12)}
    with torch.inference_mode():
        written = {"y": layer.eval()(inputs["x"])}
    layer.train()
    found = Reference(inputs, written, {"y": Noise()})

    def run(batch: Tensors) -> Tensors:
        with torch.no_grad():
            return {"y": layer(batch["x"])}

    assert judge(run, found, (2, 8), Accuracy()).problem is not None


def top_swapped(share: float) -> Run:
    """Swaps the two largest scores in a share of the rows, by their first input."""

    def change(inputs: Tensors) -> Tensors:
        scores = exact(inputs)["scores"].clone()
        chosen = (inputs["x"][:, 0] * 1e4).long() % 1000 < 1000 * share
        top = scores.topk(2, dim=1)
        rows = chosen.nonzero().flatten()
        scores[rows, top.indices[rows, 0]] = top.values[rows, 1]
        scores[rows, top.indices[rows, 1]] = top.values[rows, 0]
        return {"scores": scores}

    return change


def agreeing(percent: float) -> Accuracy:
    """Errors of any size, and so much agreement."""
    return Accuracy(max_relative_error_percent=100.0, min_agreement_percent=percent)


def test_a_row_close_to_zero_is_compared_by_the_scale_of_all_rows() -> None:
    # Rounded by 0.2 % of the usual size, which is more than the whole value of some rows.
    inputs = {"x": torch.randn(256, 1, generator=torch.Generator().manual_seed(5))}
    inputs["x"][::16] = 1e-6
    found = Reference(inputs, {"y": inputs["x"] * 2}, {"y": Noise()})

    def run(error: float) -> Run:
        return lambda batch: {"y": batch["x"] * 2 + error}

    assert judge(run(0.004), found, SIZES, Accuracy()).problem is None
    assert judge(run(0.2), found, SIZES, Accuracy()).problem is not None


def test_another_largest_entry_counts_against_the_agreement() -> None:
    verdict = judged(top_swapped(0.2), agreeing(99.5))
    assert verdict.agreement_percent is not None
    assert verdict.agreement_percent < 95
    assert verdict.problem is not None
    assert "at least 99.5 %" in verdict.problem
    accepted = judged(top_swapped(0.2), agreeing(50.0))
    assert accepted.problem is None


def test_few_rows_permit_no_other_largest_entry() -> None:
    # One of 100 rows would be within 98 %.
    def one_row(inputs: Tensors) -> Tensors:
        scores = exact(inputs)["scores"].clone()
        first = reference(100).inputs["x"][0]
        for row in (inputs["x"] == first).all(dim=1).nonzero().flatten().tolist():
            top = scores[row].topk(2)
            scores[row, top.indices] = top.values.flip(0)
        return {"scores": scores}

    verdict = judged(one_row, agreeing(98.0), samples=100)
    assert verdict.problem is not None
    assert "1 of 100 rows; fewer than 200 rows permit none" in verdict.problem


def test_a_tie_within_the_noise_is_no_other_largest_entry() -> None:
    written = torch.tensor([[1.0, 1.0 - 1e-6, 0.0]])
    ours = torch.tensor([[1.0, 1.0 + 1e-6, 0.0]])
    assert difference(ours, written).other == 1
    assert difference(ours, written, tie=1e-5).other == 0


def test_bounds_are_never_tighter_than_the_noise_of_the_reference() -> None:
    found = reference()
    noisy = Reference(found.inputs, found.outputs, {"scores": Noise(0.01, 0.02, 0.02, 1e-3)})
    run = changed(lambda scores: scores * 1.0001)
    strict = Accuracy(max_relative_error_percent=0.0)
    assert judge(run, found, SIZES, strict).problem is not None
    assert judge(run, noisy, SIZES, strict).problem is None


def test_a_model_that_depends_on_its_neighbours_is_named() -> None:
    batched = {"scores": torch.ones(8, 3)}
    single = {"scores": torch.ones(8, 3) * 1.5}
    problem = neighbour_problem(noise_of(batched, single), Accuracy())
    assert problem is not None
    assert "scores: the model as written answers differently alone and in a batch" in problem
    assert neighbour_problem(noise_of(batched, batched), Accuracy()) is None


def test_numbers_that_are_not_finite_in_the_reference_must_be_the_same() -> None:
    inputs = {"x": torch.randn(256, 3)}
    masked = inputs["x"].clone()
    masked[:, 1] = -torch.inf
    found = Reference(inputs, {"y": masked}, {"y": Noise()})

    def run(value: float) -> Run:
        def answer(batch: Tensors) -> Tensors:
            y = batch["x"].clone()
            y[:, 1] = value
            return {"y": y}

        return answer

    assert judge(run(-torch.inf), found, SIZES, Accuracy()).problem is None
    assert judge(run(torch.inf), found, SIZES, Accuracy()).problem is not None
    assert judge(run(0.0), found, SIZES, Accuracy()).problem is not None


def test_whole_numbers_differ_by_their_share() -> None:
    inputs = {"x": torch.arange(256).reshape(256, 1)}
    found = Reference(inputs, {"label": inputs["x"][:, 0] % 7}, {"label": Noise()})

    def run(batch: Tensors) -> Tensors:
        return {"label": batch["x"][:, 0] % 7}

    assert judge(run, found, SIZES, Accuracy()).problem is None
    wrong = judge(lambda b: {"label": run(b)["label"] + 1}, found, SIZES, Accuracy())
    assert wrong.problem == "relative error 100.0 %, at most 2.0 % at batch 1"


def test_the_metric_may_fall_by_so_much() -> None:
    run = changed(lambda scores: scores * 1.01)
    found = reference(metric=100.0)
    accuracy = Accuracy(max_drop_percent=0.5)
    assert judge(run, found, SIZES, accuracy, lambda _: 99.6).problem is None
    assert judge(run, found, SIZES, accuracy, lambda _: 120.0).problem is None
    problem = judge(run, found, SIZES, accuracy, lambda _: 99.0).problem
    assert problem == "the metric falls by 1.0 %, at most 0.5 %"
    nothing = judge(run, found, SIZES, accuracy, lambda _: float("nan")).problem
    assert nothing is not None


def test_the_metric_gets_the_whole_calibration_set_in_order() -> None:
    seen: list[torch.Tensor] = []

    def metric(outputs: Tensors) -> float:
        seen.append(outputs["scores"])
        return 1.0

    found = reference(samples=250, metric=1.0)
    assert judge(exact, found, SIZES, Accuracy(), metric).problem is None
    assert torch.allclose(seen[0], found.outputs["scores"], atol=1e-5)


def test_a_metric_that_raises_refuses_the_candidate() -> None:
    def metric(_: Tensors) -> float:
        raise KeyError("labels")

    problem = judge(exact, reference(metric=1.0), SIZES, Accuracy(), metric).problem
    assert problem == "the metric raised KeyError: 'labels'"


@given(samples=st.integers(8, 300), powers=st.integers(0, 6), odd=st.integers(0, 1))
def test_cases_cover_every_size_and_every_sample(samples: int, powers: int, odd: int) -> None:
    sizes = tuple(1 << power for power in range(powers + 1))
    if odd and sizes[-1] > 2:
        sizes = (*sizes, sizes[-1] + 3)
    found = list(cases(samples, sizes))
    assert {case.size for case in found} == set(sizes)
    assert all(0 < len(case.rows) <= case.size for case in found)
    assert all(0 <= row < samples for case in found for row in case.rows)
    whole = [row for case in found if case.whole for row in case.rows]
    assert whole == list(range(samples))


@given(scale=st.floats(0.001, 1000.0), factor=st.floats(0.5, 2.0))
def test_errors_do_not_depend_on_the_scale(scale: float, factor: float) -> None:
    written = torch.randn(16, 5, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    found = difference(written * scale * factor, written * scale)
    assert found.relative == pytest.approx(100 * abs(factor - 1), rel=1e-6, abs=1e-9)
    assert found.largest == pytest.approx(100 * abs(factor - 1), rel=1e-6, abs=1e-9)


def test_nothing_against_nothing_is_no_error() -> None:
    zeros = torch.zeros(4, 3)
    assert difference(zeros, zeros).relative == 0.0
    assert difference(zeros + 1e-3, zeros).relative == float("inf")
