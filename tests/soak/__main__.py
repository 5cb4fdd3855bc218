"""`python -m tests.soak --revisions 100000`: faults on a real API server, every revision checked.

Jobs, operators, agents, nodes and the API server come, go and fail by lot for a while; then all is
mended, every job has to come to its end, nothing may be written any more, and no promise may have
been broken on any revision that the API server committed. That is a round. Rounds follow until
enough revisions were recorded. Ends with one line of JSON, and with 1 where something was wrong.
"""

import argparse
import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from random import Random

from gpujob_local.cluster.options import NodeOptions
from tests.harness.recorder import Recorder
from tests.harness.scene import STALE_SECONDS, Scene, chaos_options, running_scene
from tests.soak.faults import OPERATORS, Weather

NODES = ("node-1", "node-2")
ROUND_SECONDS = 120.0
BETWEEN_EVENTS_SECONDS = 1.0
# From the end of all faults.
SETTLE_SECONDS = 240.0
# Then nothing is written for so long.
QUIET_SECONDS = 8.0


@dataclass
class Tally:
    """What was recorded and what was wrong, over all rounds."""

    revisions: Counter[str] = field(default_factory=Counter[str])
    events: Counter[str] = field(default_factory=Counter[str])
    ends: Counter[str] = field(default_factory=Counter[str])
    problems: list[str] = field(default_factory=list[str])
    rounds: int = 0

    @property
    def recorded(self) -> int:
        return sum(self.revisions.values())


def play_round(scene: Scene, random: Random, tally: Tally, seconds: float) -> None:
    """Faults for so many seconds; then every job's end, quiet, and the recorder's judgement."""
    if tally.rounds:
        scene.recorder = Recorder(scene.cluster.control_plane, STALE_SECONDS)
    weather = Weather(scene, random, time.sleep)
    try:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            weather.happen()
            time.sleep(random.uniform(0.0, 2 * BETWEEN_EVENTS_SECONDS))
        tally.ends.update(_ends(scene, weather.mend()))
        _wait_for_quiet(scene)
        scene.clear()
        scene.recorder.verify()
    except AssertionError as error:
        tally.problems.append(f"round {tally.rounds}: {error}")
    finally:
        scene.recorder.stop()
        tally.rounds += 1
        tally.events.update(weather.happened)
        tally.revisions.update(one.kind for one in scene.recorder.revisions())


def _ends(scene: Scene, names: list[str]) -> list[str]:
    """How the jobs ended that nobody deleted (I4, I11)."""
    final = ("Succeeded", "Failed")
    scene.wait(
        lambda: all(scene.phase(name) in final for name in names),
        f"{', '.join(names)} come to their end",
        SETTLE_SECONDS,
    )
    return [scene.phase(name) for name in names]


def _wait_for_quiet(scene: Scene) -> None:
    """I8: with every job at its end the operator writes no job any more."""
    seen = -1, time.monotonic()

    def quiet() -> bool:
        nonlocal seen
        count = sum(one.kind == "GPUJob" for one in scene.recorder.revisions())
        if count != seen[0]:
            seen = count, time.monotonic()
        return time.monotonic() - seen[1] > QUIET_SECONDS

    scene.wait(quiet, "no job is written any more", SETTLE_SECONDS)


def main(arguments: list[str] | None = None) -> int:
    options = _options(arguments)
    random, tally = Random(options.seed), Tally()
    started = time.monotonic()
    nodes = tuple(NodeOptions(name, cards=2) for name in NODES)
    with running_scene(chaos_options(nodes)) as scene:
        scene.create_claim("checkpoints")
        for name in OPERATORS[1:]:
            scene.cluster.spawn_operator(name)
        while tally.recorded < options.revisions and not tally.problems:
            play_round(scene, random, tally, options.round_seconds)
            print(
                f"round {tally.rounds}: {tally.recorded} revisions, "
                f"{len(tally.problems)} problems, {time.monotonic() - started:.0f} s",
                flush=True,
            )
    for problem in tally.problems:
        print(problem)
    said = {
        "seed": options.seed,
        "revisions": tally.recorded,
        "by_kind": tally.revisions,
        "rounds": tally.rounds,
        "events": tally.events,
        "ends": tally.ends,
        "problems": len(tally.problems),
        "seconds": round(time.monotonic() - started),
    }
    print(json.dumps(said))
    return 1 if tally.problems else 0


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--revisions", type=int, default=100_000, help="record at least so many")
    parser.add_argument("--seed", type=int, default=0, help="of what happens, not of when")
    parser.add_argument("--round-seconds", type=float, default=ROUND_SECONDS, help="of faults")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
