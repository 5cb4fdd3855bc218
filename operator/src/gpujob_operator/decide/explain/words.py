"""Renders an explanation of a placement as text: rows of a label and a value with numbers."""

from collections import Counter
from dataclasses import fields

from gpujob_api.gpujob import Placement, Reservation, SpotPolicy
from gpujob_api.quantities import format_count, format_memory
from gpujob_operator.decide.explain.placement_explanation import Candidate, PlacementExplanation
from gpujob_operator.decide.packing.request import Score
from gpujob_operator.decide.packing.select import STEP_GPUS
from gpujob_operator.decide.placement.diagnosis import NodeLack

Row = tuple[str, str]
# Nodes without capacity that are listed one by one. The others are counted.
LACKS_SHOWN = 10
GPUS_SHOWN = 8


def rows(explanation: PlacementExplanation) -> list[Row]:
    """Returns the rows: requirements, placement and score, next best places, and what
    nodes lack.
    """
    found: list[Row] = [("Needs", _needs(explanation))]
    if explanation.chosen is not None:
        found.append(("Placed", _candidate(explanation.chosen)))
        found.append(("Because", _because(explanation)))
    elif explanation.refusal:
        found.append(("Does not fit", explanation.refusal))
    else:
        found.append(("Not placed", "although it fits: see the conditions"))
    found += _others(explanation)
    found += [("Lacks", f"{node}: {lack.text}") for node, lack in _listed(explanation)]
    left = len(explanation.lacks) - LACKS_SHOWN
    if left > 0:
        found.append(("Lacks", f"{left} more nodes: {_counted(explanation)}"))
    return found


def _others(explanation: PlacementExplanation) -> list[Row]:
    """Returns the places that rank before the decision now, then those after it."""
    rank = explanation.rank if explanation.rank is not None else len(explanation.best)
    found: list[Row] = []
    for number, one in enumerate(explanation.best):
        if number == rank:
            continue
        before = number < rank and explanation.chosen is not None
        label = "Better now" if before else f"Next best {number if rank < number else number + 1}"
        text = _candidate(one)
        if explanation.chosen is not None:
            text += f": {_difference(explanation, explanation.chosen, one)}"
        found.append((label, text))
    return found


def _needs(explanation: PlacementExplanation) -> str:
    requirements = explanation.requirements
    spec = requirements.job.spec
    held = _held_by(explanation)
    gpu = _held(held) if held is not None else "a whole GPU"
    host = f"{requirements.cpu_milli} milli-CPU, {format_memory(requirements.memory_bytes)}"
    workers = f"{spec.workers} workers with " if spec.workers > 1 else ""
    return f"{workers}{spec.gpus_per_worker} x {gpu}, {host} each"


def _held_by(explanation: PlacementExplanation) -> Reservation | None:
    chosen = explanation.chosen or (explanation.best[0] if explanation.best else None)
    return chosen.reservation if chosen is not None else None


def _held(held: Reservation) -> str:
    whole = "a whole GPU" if held.exclusive else format_memory(held.memory_bytes)
    return f"{whole} at {held.utilization_percent:.0f} % ({held.source.value})"


def _candidate(one: Candidate) -> str:
    where = _where(one.placement)
    scores = [score for score in one.scores if score is not None]
    if len(one.scores) > 1 or not scores:
        return where
    return f"{where}, costs {_score(scores[0])}"


def _score(score: Score) -> str:
    """Returns the score in GPUs with all of its terms, which add up to it."""
    names = [one.name for one in fields(score) if one.name != "total"]
    terms = " + ".join(f"{name} {getattr(score, name):.3f}" for name in names)
    return f"{score.total:.3f} of a GPU ({terms})"


def _where(placement: Placement) -> str:
    nodes: dict[str, list[str]] = {}
    for worker in placement.workers:
        nodes.setdefault(worker.node, []).extend(worker.gpus)
    parts: list[str] = []
    for node, gpus in nodes.items():
        more = f" and {len(gpus) - GPUS_SHOWN} more" if len(gpus) > GPUS_SHOWN else ""
        parts.append(f"{node} ({', '.join(gpus[:GPUS_SHOWN])}{more})")
    return ", ".join(parts)


def _because(explanation: PlacementExplanation) -> str:
    chosen = explanation.chosen
    assert chosen is not None, "asked by the caller"
    if explanation.rank != 0:
        if explanation.decided_here:
            return "better places are kept for earlier jobs"
        return "decided on an earlier snapshot; another place would be better now"
    fitting = len(explanation.best)
    if fitting == 1:
        return "it fits nowhere else"
    if len(chosen.scores) > 1:
        count = len({worker.node for worker in chosen.placement.workers})
        return f"its workers are closest together there, on {format_count(count, 'node')}"
    before = (
        f", after {format_count(explanation.before, 'job')} placed earlier in this cycle"
        if explanation.before
        else ""
    )
    return f"it costs future jobs the least{before}"


def _difference(explanation: PlacementExplanation, first: Candidate, one: Candidate) -> str:
    """Returns the first difference between the other place and the decision, in order of
    comparison.
    """
    prefers = explanation.requirements.spot is SpotPolicy.PREFER
    if prefers and first.placement.spot is not one.placement.spot:
        return (
            "spot, which the job prefers"
            if one.placement.spot
            else "not spot, which the job prefers"
        )
    if one.placement.gpu_model != first.placement.gpu_model:
        between = _between_models(first, one)
        if between:
            return between
    if len(one.scores) > 1:
        return _less_close(first.placement, one.placement)
    return _by_cost(first, one)


def _between_models(first: Candidate, one: Candidate) -> str:
    """Returns the difference between the models, or "" if only their names differ."""
    on = f"on {one.placement.gpu_model}"
    mine, theirs = first.step_cost, one.step_cost
    if None not in (mine.dollars, theirs.dollars) and mine.dollars != theirs.dollars:
        return f"{on} a step costs ${theirs.dollars:.2g} instead of ${mine.dollars:.2g}"
    if None not in (mine.joules, theirs.joules) and mine.joules != theirs.joules:
        return f"{on} a step takes {theirs.joules:.2g} J instead of {mine.joules:.2g} J"
    more = _bytes(one) - _bytes(first)
    if not more:
        return ""
    return f"{on} it reserves {format_memory(abs(more))} {'more' if more > 0 else 'less'}"


def _by_cost(first: Candidate, one: Candidate) -> str:
    mine, theirs = first.scores[0], one.scores[0]
    if mine is None or theirs is None:
        return "its cost cannot be compared"
    more = theirs.total - mine.total
    if abs(more) > STEP_GPUS:
        return f"{abs(more):.3f} of a GPU {'more' if more > 0 else 'less'}"
    step = f"{more:+.3f} of a GPU, less than the smallest difference that counts ({STEP_GPUS})"
    known, other = first.prices[0], one.prices[0]
    if known != other:
        prices = [f"{price:.2f}" if price is not None else "no price" for price in (other, known)]
        return f"{step}; {prices[0]} an hour instead of {prices[1]}"
    known_rate, other_rate = first.interruptions_per_hour[0], one.interruptions_per_hour[0]
    if known_rate != other_rate:
        return f"{step}; reclaimed {other_rate:.3g} times an hour instead of {known_rate:.3g}"
    return f"{step}; then the order of nodes decides"


def _less_close(first: Placement, one: Placement) -> str:
    mine = len({worker.node for worker in first.workers})
    theirs = len({worker.node for worker in one.workers})
    if theirs != mine:
        return f"on {theirs} nodes instead of {mine}"
    return f"also on {theirs} nodes; racks and remaining capacity decide"


def _bytes(one: Candidate) -> int:
    return one.reservation.memory_bytes if one.reservation is not None else 0


def _listed(explanation: PlacementExplanation) -> list[tuple[str, NodeLack]]:
    return sorted(explanation.lacks.items())[:LACKS_SHOWN]


def _counted(explanation: PlacementExplanation) -> str:
    """Returns the nodes that are not listed, counted by what they lack."""
    left = sorted(explanation.lacks.items())[LACKS_SHOWN:]
    counts = Counter(lack.reasons for _, lack in left)
    return "; ".join(f"{count} x {text}" for text, count in counts.most_common(LACKS_SHOWN))
