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
from tests.harness.pod_facts import FINAL
from tests.harness.recorder import Recorder
from tests.harness.scene import STALE_SECONDS, Scene, chaos_options, running_scene
from tests.soak.faults import JOBS_MAX, OPERATORS, Weather
from tests.soak.story import tell

NODES = 4
CARDS = 4
ROUND_SECONDS = 120.0
EVENTS_A_SECOND = 8.0
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
    # How often somebody took the lead.
    leads: int = 0

    @property
    def recorded(self) -> int:
        return sum(self.revisions.values())


def play_round(scene: Scene, weather: Weather, tally: Tally, seconds: float) -> None:
    """Faults for so many seconds; then every job's end, quiet, and the recorder's judgement."""
    scene.recorder.stop()
    scene.recorder = Recorder(scene.cluster.control_plane, STALE_SECONDS, leaders_freeze=True)
    try:
        weather.play(seconds)
        _wait_for_ends(scene, weather.mend())
        _wait_for_quiet(scene)
        scene.clear()
        scene.recorder.verify()
    except AssertionError as error:
        story = tell(str(error), scene.recorder.revisions(), scene.recorder.cuts)
        tally.problems.append(f"round {tally.rounds}: {error}\n{story}")
    finally:
        scene.recorder.stop()
        tally.rounds += 1
        tally.events.update(weather.take_happened())
        tally.ends.update(_ends(scene))
        kinds = [one.kind for one in scene.recorder.revisions()]
        # That the leader still leads, and that nodes are well, says nothing of jobs.
        tally.revisions.update(kind for kind in kinds if kind not in ("Lease", "Node"))
        # Who leads when a round begins took the lead before it.
        tally.leads += max(scene.recorder.history.ends.changes - 1, 0)


def _wait_for_ends(scene: Scene, names: list[str]) -> None:
    """Each job ends that nobody deleted (I4, I11). What ended may be taken away as it asked."""
    for name in names:
        scene.wait(
            lambda name=name: scene.phase(name) in ("", *FINAL),
            f"{name} comes to its end",
            SETTLE_SECONDS,
        )


def _ends(scene: Scene) -> Counter[str]:
    """How many jobs ended how, by the last revision of each."""
    jobs = [one.object for one in scene.recorder.revisions() if one.kind == "GPUJob"]
    last = {job["metadata"]["uid"]: job.get("status", {}).get("phase", "") for job in jobs}
    return Counter(phase for phase in last.values() if phase in FINAL)


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
    tally, started = Tally(), time.monotonic()
    nodes = tuple(NodeOptions(f"node-{n}", cards=CARDS) for n in range(1, options.nodes + 1))
    with running_scene(chaos_options(nodes)) as scene:
        scene.create_claim("checkpoints")
        for name in OPERATORS[1:]:
            scene.cluster.spawn_operator(name)
        weather = Weather(scene, Random(options.seed), options.jobs, options.events_a_second)
        while tally.recorded < options.revisions and not tally.problems:
            play_round(scene, weather, tally, options.round_seconds)
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
        "leads": tally.leads,
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
    parser.add_argument("--nodes", type=int, default=NODES, help=f"with {CARDS} cards each")
    parser.add_argument("--jobs", type=int, default=JOBS_MAX, help="at most so many at a time")
    parser.add_argument("--events-a-second", type=float, default=EVENTS_A_SECOND, help="on average")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
