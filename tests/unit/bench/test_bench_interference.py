import gzip
import json
from pathlib import Path

import pytest

from bench import interference
from bench.gavel.pairing import (
    best_pairing,
    random_throughput_per_gpu,
    rank_correlation,
    throughput_per_gpu,
)
from bench.gavel.pairs import PairTable, Profiles, family, observations, read_pairs

COLUMNS = "gpu,job1,gpus1,job2,gpus2,iso1_it_s,iso2_it_s,colo1_it_s,colo2_it_s"
NAMES = [f"{kind} (batch size {size})" for kind in ("A", "B", "C") for size in (1, 2, 4)]


def write_table(folder: Path) -> None:
    """Jobs of kind A barely use the GPU; B and C do; A beside anything is free."""
    lines = [COLUMNS]
    for gpu, power in (("slow", 1.0), ("fast", 4.0)):
        for index, first in enumerate(NAMES):
            for second in NAMES[index:]:
                alone = [2.0 if name[0] == "A" else power for name in (first, second)]
                part = 0.9 if "A" in (first[0], second[0]) else 0.45
                fits = not (first[0] == second[0] == "C")
                rates = [rate * part * fits for rate in alone]
                names = f'"{first}",1,"{second}",1'
                lines.append(f"{gpu},{names},{alone[0]},{alone[1]},{rates[0]},{rates[1]}")
        lines.append(f'{gpu},"A (batch size 1)",2,"B (batch size 1)",1,9,9,9,9')
    with gzip.open(folder / "colocation_pairs.csv.gz", "wt") as file:
        file.write("\n".join(lines))


@pytest.fixture
def table(tmp_path: Path) -> PairTable:
    write_table(tmp_path)
    return read_pairs(tmp_path)


def test_reads_pairs_of_single_gpus_both_ways(table: PairTable) -> None:
    assert table.gpus == ["fast", "slow"]
    assert table.types == sorted(NAMES)
    assert table.speeds["fast"][NAMES[0], NAMES[3]] == pytest.approx(0.9)
    assert table.speeds["fast"][NAMES[3], NAMES[0]] == pytest.approx(0.9)
    assert len(table.speeds["fast"]) == 81


def test_pairs_without_iterations_do_not_fit(table: PairTable) -> None:
    assert table.gain("slow", NAMES[6], NAMES[7]) is None
    assert table.gain("slow", NAMES[3], NAMES[4]) == pytest.approx(0.9)


def test_profiles_know_single_job_figures_only(table: PairTable) -> None:
    before = Profiles(table, "fast", NAMES).use(NAMES[0])
    for gpu in table.gpus:
        for pair in table.speeds[gpu]:
            table.speeds[gpu][pair] = 0.123
    assert Profiles(table, "fast", NAMES).use(NAMES[0]) == before
    assert before.kind == family(NAMES[0]) == "A"
    assert before.utilization_percent is None


def test_observations_leave_out_what_does_not_fit(table: PairTable) -> None:
    profiles = Profiles(table, "fast", NAMES)
    assert len(observations(table, "fast", profiles, NAMES[:2])) == 4
    assert observations(table, "fast", profiles, NAMES[6:]) == []


def test_an_empty_table_is_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "colocation_pairs.csv.gz", "wt") as file:
        file.write(COLUMNS)
    with pytest.raises(ValueError, match="no pairs"):
        read_pairs(tmp_path)


def test_the_best_pairing_is_not_the_greedy_one() -> None:
    gains = {("a", "b"): 1.9, ("c", "d"): 1.0, ("a", "c"): 1.6, ("b", "d"): 1.6}

    def gain(first: str, second: str) -> float:
        return gains.get((first, second), 1.0)

    pairs = best_pairing(["a", "b", "c", "d"], gain)
    assert pairs == [("a", "c"), ("b", "d")]
    assert throughput_per_gpu(pairs, gain) == 1.6
    assert random_throughput_per_gpu(["a", "b", "c", "d"], gain) == pytest.approx(8.1 / 6)


def test_rank_correlation_shares_ranks_of_equals() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 1, 2], [1, 2, 3]) == pytest.approx(0.8660254)
    assert rank_correlation([1, 1], [1, 2]) == 0


def test_command_learns_what_the_made_table_hides(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_table(tmp_path)
    printed: list[str] = []
    for _ in range(2):
        assert interference.main(["--data", str(tmp_path), "--seeds", "1-4"]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1]
    rows = {
        (row["trace"], row["split"], row["policy"]): row
        for row in json.loads(printed[0].splitlines()[-1])["results"]
    }
    ours, mean = (rows["fast", "types", name] for name in ("gpujob", "mean of the fitted half"))
    assert ours["speed_mean_absolute_error"] < mean["speed_mean_absolute_error"]
    spread = [
        rows["fast", "types", name]["throughput_per_gpu"]
        for name in ("random pairing", "gpujob", "best pairing")
    ]
    assert spread == sorted(spread)
