"""What a turn draws before its place is drawn again on the way back to it."""

import torch

from gpujob_worker.resume.made_at import MadeAt
from gpujob_worker.resume.random_numbers import Generators
from gpujob_worker.resume.script_objects import TURNS_MAX, TurnRandom

FOLD, EPOCH = (7, 3), (7, 9)


def made(key: str, *turns: tuple[tuple[int, int], object]) -> MadeAt:
    return MadeAt(key, tuple((*at, turn) for at, turn in turns))


def drawn() -> float:
    return torch.rand(()).item()


def draw_after(random: TurnRandom, *makes: MadeAt) -> list[float]:
    found: list[float] = []
    for each in makes:
        random.sees(each)
        found.append(drawn())
    return found


def known(random: TurnRandom) -> dict[str, dict[str, object]]:
    return {at: state for _, at, state in random._known.values()}  # pyright: ignore[reportPrivateUsage]


def test_the_first_object_of_a_turn_finds_what_it_found() -> None:
    torch.manual_seed(5)
    random = TurnRandom()
    first = draw_after(random, made("net", (FOLD, 1)), made("loader", (FOLD, 1)))
    saved = [{"at": at, "random": state} for at, state in known(random).items()]
    assert [each["at"] for each in saved] == ["net"]
    again = TurnRandom()
    again.expect(saved)
    torch.manual_seed(6)
    assert draw_after(again, made("data"))[0] not in first
    assert draw_after(again, made("net", (FOLD, 0)), made("loader", (FOLD, 0))) == first
    torch.manual_seed(7)
    assert draw_after(again, made("net", (FOLD, 0)))[0] not in first, "only once"


def test_on_no_way_back_nothing_is_put_back() -> None:
    random = TurnRandom()
    random.expect([{"at": "net", "random": {}}])
    random.expect(())
    random.sees(made("net", (FOLD, 1)))


def test_each_turn_is_seen_once_and_the_loop_of_the_steps_never() -> None:
    random = TurnRandom()
    random.innermost = EPOCH
    for turn in range(3):
        random.sees(made(f"net {turn}", (FOLD, 1), (EPOCH, turn)))
        random.sees(made(f"fold {turn}", (FOLD, turn)))
    assert list(known(random)) == ["fold 2"]
    random.sees(made("unknown turn", ((8, 1), None)))
    assert list(known(random)) == ["fold 2"]


def test_only_so_many_turns_are_kept() -> None:
    random = TurnRandom()
    for line in range(2 * TURNS_MAX):
        random.sees(made(f"net {line}", ((7, line), 0)))
    assert list(known(random)) == [f"net {line}" for line in range(TURNS_MAX, 2 * TURNS_MAX)]


def test_samplers_are_told_apart_by_what_they_draw_by() -> None:
    def orders(sampler: torch.utils.data.Sampler[int]) -> list[str | None]:
        data = torch.utils.data.TensorDataset(torch.arange(4))
        return Generators(torch.utils.data.DataLoader(data, sampler=sampler)).orders()

    weighted = torch.utils.data.WeightedRandomSampler
    assert orders(weighted([1.0, 2.0], 4)) == orders(weighted([1.0, 2.0], 4))
    assert orders(weighted([1.0, 2.0], 4)) != orders(weighted([2.0, 1.0], 4))
    of = torch.utils.data.SubsetRandomSampler
    assert orders(of([0, 1])) != orders(of([1, 0]))
    assert orders(of([])) == orders(of([]))
    assert orders(of(["a", None])) == orders(of(["b", None]))  # type: ignore[list-item]
