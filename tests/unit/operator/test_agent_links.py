"""Which cards are close together, as NVML tells it."""

from gpujob_operator.agent.health import CardHealth
from gpujob_operator.agent.readings import CardReader
from tests.harness.fake_nvml import GPU_IS_LOST, FakeCard, FakeNvml


def machine(count: int) -> FakeNvml:
    return FakeNvml(*(FakeCard(uuid=f"GPU-{n}") for n in range(count)))


def reader_of(nvml: FakeNvml) -> CardReader:
    return CardReader(nvml, lambda pid: None, CardHealth(nvml))


def groups(nvml: FakeNvml) -> list[int]:
    return [card.link_group for card in reader_of(nvml).read()]


def test_bridged_pairs_are_groups() -> None:
    nvml = machine(4)
    nvml.nvlinks = {(0, 2), (1, 3)}
    assert groups(nvml) == [0, 1, 0, 1]


def test_cards_that_reach_each_other_over_others_are_one_group() -> None:
    nvml = machine(4)
    nvml.nvlinks = {(0, 1), (1, 2), (2, 3)}
    assert groups(nvml) == [0, 0, 0, 0]


def test_without_links_cards_of_one_numa_node_are_a_group() -> None:
    nvml = machine(4)
    nvml.numa = {0: 0, 1: 0, 2: 1, 3: 1}
    assert groups(nvml) == [0, 0, 2, 2]


def test_where_nobody_can_tell_no_card_is_closer_to_one_than_to_another() -> None:
    assert groups(machine(3)) == [0, 0, 0]
    assert groups(machine(1)) == [0]


def test_links_are_asked_for_once() -> None:
    nvml = machine(4)
    reader = reader_of(nvml)
    reader.read()
    asked = nvml.link_questions
    reader.read()
    assert nvml.link_questions == asked > 0


def test_a_lost_card_keeps_its_group_and_the_others_theirs() -> None:
    nvml = machine(4)
    nvml.nvlinks = {(0, 1), (2, 3)}
    reader = reader_of(nvml)
    reader.read()
    nvml.cards[3].errors["*"] = GPU_IS_LOST
    lost = reader.read()
    assert [card.link_group for card in lost] == [0, 0, 2, 2]
    assert not lost[3].healthy


def test_links_that_cannot_be_read_are_no_groups() -> None:
    nvml = machine(2)
    nvml.nvlinks = {(0, 1)}
    nvml.cards[0].errors["nvmlDeviceGetP2PStatus"] = GPU_IS_LOST
    assert groups(nvml) == [0, 0]
