"""Why a job fits nowhere now, with numbers: the cards counted by what keeps it off them.

What is found on a node holds as long as the node is the same object, and is kept for the next
cycle: thousands of waiting jobs are told again and again.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpujob_api.gpujob import Reservation
from gpujob_api.quantities import format_memory
from gpujob_operator.decide.capacity.cluster import Capacity, Card, NodeCapacity, disturbed
from gpujob_operator.decide.capacity.slowdown_law import summed_utilization_limit_percent
from gpujob_operator.decide.placement.assumed import Board
from gpujob_operator.decide.placement.finding import FARTHEST, NO_CARDS, NOTHING, Finding, Findings
from gpujob_operator.decide.placement.memo import Memo
from gpujob_operator.decide.placement.node_filter import node_refusal
from gpujob_operator.decide.placement.requirements import Needs

# A card that would do, on a node that has too few of them.
_FREE = Finding("free, but too few on one node")
_CLAIMED = Finding("kept for an earlier job")
_TAKEN = Finding("held whole by another job")
_TOO_SMALL = Finding("too small")
_TOO_FULL = Finding("too full")
_TOO_FULL_BY_STRANGERS = Finding("too full, strangers included")
_UNMEASURED = Finding("shared already, and this job starts alone until it is measured")
# With the figure in thousandths of a processor, and in bytes.
_CPU_SHORT = "on nodes {} milli-CPU short"
_MEMORY_SHORT = "on nodes {} host memory short"
_STRANGERS = "used by strangers ({})"
# Of a card that does not do: the finding, and what is missing in bytes where that is it.
_Misfit = tuple[Finding, int]


@dataclass(slots=True)
class Refusal:
    """`possible` is False when the job never fits on these cards. The message is found when it is
    asked for: most are not."""

    possible: bool
    describe: Callable[[], str]
    _message: str | None = None

    @property
    def message(self) -> str:
        if self._message is None:
            self._message = self.describe()
        return self._message


def refuse(
    needs: Needs,
    model: str,
    wanted: Reservation | None,
    board: Board,
    capacity: Capacity,
    placed: int,
) -> Refusal:
    """The refusal on cards of one model; `placed` workers of the gang found a place, which is taken
    in `capacity`."""
    # As it was when the job was refused: its own claim is not in its way.
    claimed_on = board.claimed_on
    return Refusal(
        _possible(needs, model, wanted, board),
        lambda: _explain(needs, model, wanted, capacity, claimed_on, board.memo, placed),
    )


def no_model(needs: Needs, board: Board) -> Refusal:
    """There is no card of a model that the job accepts."""
    present = sorted(board.capacity.largest)
    wanted = ", ".join(needs.job.spec.gpu.models) or "any"
    have = ", ".join(present) or "none: no node with an agent has joined"
    message = f"no card of model {wanted}; models in the cluster: {have}"
    return Refusal(False, lambda: message)


def _possible(needs: Needs, model: str, wanted: Reservation | None, board: Board) -> bool:
    """Whether the workers would fit were all cards well and none of our jobs there."""
    least_bytes = needs.least_bytes(model, wanted)

    def find() -> bool:
        places = 0
        for node in board.capacity.nodes.values():
            misfit = _node_never(needs, node)
            large = (
                c.total_bytes - c.driver_bytes >= least_bytes
                for c in node.cards
                if c.model == model
            )
            places += 0 if misfit else sum(large) // needs.job.spec.gpus_per_worker
        return places >= needs.job.spec.workers

    return board.memo.once(("possible", needs.alike, model), find)


def _node_never(needs: Needs, node: NodeCapacity) -> bool:
    """Whether the job can never be on this node, whatever else is there."""
    if needs.cpu_milli > node.node.cpu_milli_allocatable:
        return True
    if needs.memory_bytes > node.node.memory_bytes_allocatable:
        return True
    return bool(node_refusal(needs, node.node))


def _explain(
    needs: Needs,
    model: str,
    wanted: Reservation | None,
    capacity: Capacity,
    claimed_on: Mapping[str, frozenset[str]],
    memo: Memo,
    placed: int,
) -> str:
    """Counts the cards by what keeps the job off them, and names the nearest fit."""
    counts, nearest = memo.findings(
        (needs.alike, model),
        capacity.nodes,
        claimed_on,
        lambda node, claimed: _look(needs, model, wanted, node, claimed),
    )
    total = sum(counts.values())
    asked = needs.job.spec.workers * needs.job.spec.gpus_per_worker
    what = _what(needs, wanted)
    gang = f" (room for {placed} of {needs.job.spec.workers} workers)" if placed else ""
    message = f"needs {asked} x {what}{gang}; of {total} cards: {_in_words(counts)}"
    missing_bytes, uuid, name = nearest
    return message + _nearest_text(missing_bytes, name, capacity.card(name, uuid))


def _in_words(counts: Mapping[Finding, int]) -> str:
    """What keeps most of the cards comes first; findings that differ in the figure are one."""
    cards: Counter[str] = Counter()
    figures: dict[str, list[int]] = {}
    for finding, count in counts.items():
        cards[finding.text] += count
        figures.setdefault(finding.text, []).append(finding.figure)
    return "; ".join(
        f"{cards[text]} {_with_figures(text, min(figures[text]), max(figures[text]))}"
        for text in sorted(cards, key=lambda text: (-cards[text], text))
    )


def _with_figures(text: str, low: int, high: int) -> str:
    show = format_memory if text in (_MEMORY_SHORT, _STRANGERS) else str
    return text.format(show(low) if low == high else f"{show(low)} to {show(high)}")


def _nearest_text(missing_bytes: int, node: str, card: Card | None) -> str:
    if card is None:
        return ""
    free, total = format_memory(max(card.free_bytes, 0)), format_memory(card.total_bytes)
    where = f"{card.uuid} on {node} with {free} free of {total}"
    return f"; nearest: {where}, {format_memory(missing_bytes)} are missing"


def node_lacks(needs: Needs, model: str, wanted: Reservation | None, node: NodeCapacity) -> str:
    """What keeps one worker off this node, with numbers; "" where it fits."""
    if all(card.model != model for card in node.cards):
        return f"no card of model {model}"
    found = _look(needs, model, wanted, node, NO_CARDS)
    count = needs.job.spec.gpus_per_worker
    if found.counts.get(_FREE, 0) >= count:
        return ""
    lacks = f"of {sum(found.counts.values())} cards: {_in_words(found.counts)}"
    missing_bytes, uuid, name = found.nearest
    return lacks + _nearest_text(missing_bytes, name, node.card(uuid))


def _look(
    needs: Needs,
    model: str,
    wanted: Reservation | None,
    node: NodeCapacity,
    claimed: frozenset[str],
) -> Findings:
    cards = [card for card in node.cards if card.model == model]
    if not cards:
        return NOTHING
    on_node = _node_misfit(needs, node)
    if on_node:
        return Findings({on_node: len(cards)})
    counts: dict[Finding, int] = {}
    nearest = FARTHEST
    least_bytes = needs.least_bytes(model, wanted)
    for card in cards:
        misfit = _card_misfit(needs, wanted, least_bytes, card, claimed)
        finding, missing_bytes = misfit or (_FREE, 0)
        counts[finding] = counts.get(finding, 0) + 1
        if 0 < missing_bytes <= nearest[0]:
            nearest = min(nearest, (missing_bytes, card.uuid, node.node.name))
    return Findings(counts, nearest)


def _node_misfit(needs: Needs, node: NodeCapacity) -> Finding | None:
    """What keeps the job off all of the node's cards."""
    refusal = node.closed or node_refusal(needs, node.node)
    if refusal:
        return _as_said(refusal)
    if node.cpu_milli_free < needs.cpu_milli:
        return Finding(_CPU_SHORT, needs.cpu_milli - node.cpu_milli_free)
    if node.memory_bytes_free < needs.memory_bytes:
        return Finding(_MEMORY_SHORT, needs.memory_bytes - node.memory_bytes_free)
    return None


def _as_said(text: str) -> Finding:
    """Words of somebody else, braces included."""
    return Finding(text.replace("{", "{{").replace("}", "}}"))


def _card_misfit(
    needs: Needs, wanted: Reservation | None, least_bytes: int, card: Card, claimed: frozenset[str]
) -> _Misfit | None:
    if card.blocked:
        return _as_said(f"blocked ({card.blocked.split(':')[0]})"), 0
    room = card.total_bytes - card.driver_bytes
    if least_bytes > room:
        return _TOO_SMALL, least_bytes - room
    if card.uuid in claimed:
        return _CLAIMED, 0
    if card.taken:
        return _TAKEN, 0
    if wanted is None and card.tenants:
        return _UNMEASURED, 0
    if needs.exclusive and disturbed(card):
        return Finding(_STRANGERS, card.others_bytes), 0
    if card.free_bytes < least_bytes:
        finding = _TOO_FULL_BY_STRANGERS if disturbed(card) else _TOO_FULL
        return finding, least_bytes - card.free_bytes
    return _slowed(needs, wanted, card) if wanted is not None else None


def _slowed(needs: Needs, wanted: Reservation, card: Card) -> _Misfit | None:
    if not card.tenants:
        return None
    total = card.utilization_percent + wanted.utilization_percent
    limits = [tenant.max_slowdown_percent for tenant in card.tenants]
    limit = min(*limits, needs.job.spec.sharing.max_slowdown_percent)
    if total <= summed_utilization_limit_percent(limit, card.law):
        return None
    return Finding(f"busy: {{}} % together would slow a job by over {limit} %", round(total)), 0


def _what(needs: Needs, wanted: Reservation | None) -> str:
    if wanted is not None:
        return f"{format_memory(wanted.memory_bytes)} at {wanted.utilization_percent:.0f} %"
    hint = f" of at least {format_memory(needs.hint_bytes)}" if needs.hint_bytes else ""
    return f"a whole card{hint}"
