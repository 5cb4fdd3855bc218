"""The acts of the demo. They run side by side as far as two cores permit."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gpujob_api.gpujob import GPUJob, JobPhase, ReservationSource
from gpujob_local.cluster.cluster import LocalCluster
from gpujob_local.demo import claims, turns
from gpujob_local.demo.following import Follower, StoryError
from gpujob_local.demo.telling import Claim, Teller
from gpujob_local.demo.turns import Comparison

RECLAIM_NOTICE_SECONDS = 1.0
RECLAIM_GRACE_SECONDS = 10.0
# The spot node is reclaimed once its job is at this step, so that there is something to lose.
RECLAIM_AT_STEP = 20
UNMANAGED_BYTES = 1200 * 1024**2
SPOT_NODE = "spot-1"
UNMANAGED_NODE = "node-2"
# A quiet machine needs a tenth of these. A laptop that does other work may need most of them.
LIMIT_SECONDS = 240.0
FINISH_LIMIT_SECONDS = 600.0
JOBS = ("classifier", "classifier-again", "gpt", "gpt-reference", "guest", "recommender")


@dataclass(slots=True)
class Story:
    """One run of the demo. `examples` holds the YAML files, and the training scripts are next to
    it.
    """

    cluster: LocalCluster
    follower: Follower
    teller: Teller
    examples: Path
    card_bytes: int

    def tell(self) -> None:
        """Runs all acts in order. Raises `StoryError` if an expected event does not happen."""
        self.teller.chapter(
            "An unmanaged process allocates memory on a card; five jobs are applied"
        )
        unmanaged = self._unmanaged_process()
        for name in ("checkpoints-claim", "gpt", "gpt-reference", "classifier", "guest"):
            self._apply(name)
        waiting = self._state(
            "guest",
            "a message that counts the unmanaged process",
            _refused_by_unmanaged_process,
            LIMIT_SECONDS,
        )
        self.teller.chapter(
            "The first job is measured and its reservation shrinks; the same workload joins it"
        )
        self._state("classifier", "a measured reservation", _measured, LIMIT_SECONDS)
        self._profile_saved()
        self._apply("classifier-again")
        joined = self._state(
            "classifier-again", "a profile's reservation", _from_profile, LIMIT_SECONDS
        )
        together = (joined, self._others("classifier-again"))
        self.cluster.stop_unmanaged_process(unmanaged)
        self.teller.say("unmanaged", "is gone; the guest can have its card now")
        self._spot_node_goes()
        self.teller.chapter("One more job is tuned; all jobs finish")
        self._apply("recommender")
        for name in JOBS:
            self._state(name, "success", _succeeded, FINISH_LIMIT_SECONDS)
        self._check_wait()
        self._check(waiting, together)

    def _unmanaged_process(self) -> str:
        card = self.cluster.cards(UNMANAGED_NODE)[0]
        handle = self.cluster.start_unmanaged_process(card, UNMANAGED_BYTES)
        self.teller.say("unmanaged", f"allocates memory on {card}")
        self._unmanaged_process_seen(card)
        return handle

    def _unmanaged_process_seen(self, card: str) -> None:
        """Waits until the agent has published all of it. A job could still fit next to a part."""
        used = f'{{.status.gpus[?(@.uuid=="{card}")].memoryUsedBytes}}'
        end = time.monotonic() + LIMIT_SECONDS
        while True:
            done = self.cluster.kubectl("get", "gpunode", UNMANAGED_NODE, "-o", f"jsonpath={used}")
            if int(done.stdout or 0) >= UNMANAGED_BYTES:
                return
            if time.monotonic() > end:
                raise StoryError(f"{card} shows {done.stdout} bytes in use, not {UNMANAGED_BYTES}")
            time.sleep(0.2)

    def _apply(self, name: str) -> None:
        path = self.examples / f"{name}.yaml"
        done = self.cluster.kubectl("apply", "-f", str(path))
        for line in done.stdout.splitlines():
            self.teller.say("kubectl apply", line)

    def _state(
        self, name: str, what: str, condition: Callable[[GPUJob], bool], limit_seconds: float
    ) -> GPUJob:
        return self.follower.wait(name, what, condition, limit_seconds)

    def _profile_saved(self) -> None:
        """Waits until the first job's own profile has settings.

        A busy machine finds them long after the measurement. Other jobs' profiles may come before.
        """
        end = time.monotonic() + LIMIT_SECONDS
        while not self._settings_saved():
            if time.monotonic() > end:
                limit = f"{LIMIT_SECONDS:.0f} s"
                raise StoryError(
                    f"classifier: no GPUProfile with settings was saved within {limit} of the "
                    "measurement"
                )
            time.sleep(0.2)

    def _settings_saved(self) -> bool:
        profile = self.follower.profiles.get(f"workload-{self._fingerprint()}")
        return profile is not None and any(one.tuned is not None for one in profile.status.entries)

    def _spot_node_goes(self) -> None:
        self._state("gpt", f"step {RECLAIM_AT_STEP}", _past(RECLAIM_AT_STEP), LIMIT_SECONDS)
        self.teller.chapter("The spot node under a running job is reclaimed")
        self.teller.say(
            SPOT_NODE,
            f"reclaimed: in {RECLAIM_NOTICE_SECONDS:.0f} s SIGTERM, "
            f"then {RECLAIM_GRACE_SECONDS:.0f} s of grace, then it is gone",
        )
        self.cluster.reclaim(SPOT_NODE, RECLAIM_NOTICE_SECONDS, RECLAIM_GRACE_SECONDS)
        self._state("gpt", "a resumed attempt", _resumed, LIMIT_SECONDS)

    def _check_wait(self) -> None:
        done = self.cluster.kubectl(
            "wait",
            "--for=condition=Succeeded",
            "--timeout=10s",
            *(f"gpujob/{name}" for name in JOBS),
            check=False,
        )
        met = done.stdout.count("condition met")
        history = self.follower.history
        attempts = sum(history[name][-1].status.attempt for name in JOBS)
        self.teller.claim(
            "Applied -> Succeeded: every job finishes",
            met == len(JOBS),
            f"kubectl wait: {met} of {len(JOBS)} jobs, {attempts} attempts in all",
        )

    def _others(self, name: str) -> list[GPUJob]:
        """Returns all other jobs as they are now."""
        history = self.follower.history
        return [states[-1] for other, states in history.items() if other != name]

    def _check(self, waiting: GPUJob, together: tuple[GPUJob, list[GPUJob]]) -> None:
        history = self.follower.history
        first, again = history["classifier"], history["classifier-again"]
        profile = self.follower.profiles.get(f"workload-{self._fingerprint()}")
        comparison = self._compare()
        for claim in (
            claims.packed(first, *together, self.card_bytes),
            claims.unmanaged_process_respected(
                waiting, history["guest"][-1], UNMANAGED_BYTES, self.card_bytes
            ),
            claims.optimized(history["recommender"][-1], self._result("recommender"), comparison),
            claims.nothing_lost(
                history["gpt"],
                self._result("gpt"),
                self._result("gpt-reference"),
                RECLAIM_GRACE_SECONDS,
            ),
            claims.instant(first, again, profile),
        ):
            self._claim(claim)

    def _claim(self, claim: Claim) -> None:
        self.teller.claim(claim.title, claim.holds, *claim.figures)

    def _fingerprint(self) -> str:
        names = [name for name in self.follower.profiles if self._is_classifier(name)]
        return names[0].removeprefix("workload-") if names else ""

    def _is_classifier(self, name: str) -> bool:
        command = self.follower.profiles[name].spec.command
        return any("train_classifier" in part for part in command)

    def _result(self, name: str) -> dict[str, object]:
        path = self.cluster.volume("checkpoints") / f"{name}.json"
        return turns.read_result(path)

    def _compare(self) -> Comparison | None:
        """Compares the recommender's script with its settings and without us."""
        states = self.follower.history["recommender"]
        job, tuned = states[-1], states[-1].status.tuned
        if tuned is None:
            return None
        # A finished job holds no card any more.
        (card,) = next(
            found.workers[0].gpus for state in states if (found := state.status.placement)
        )
        self.teller.say("recommender", f"the same script with and without its settings on {card}")
        command = [str(part) for part in job.spec.worker_container()["command"]]
        script, *arguments = command[command.index("python") + 1 :]
        at = arguments.index("--result")
        whole = [str(self.examples.parent / script), *arguments[:at], *arguments[at + 2 :]]
        try:
            return turns.compare(
                partial(self.cluster.start_on_card, card),
                whole,
                tuned,
                self.cluster.volume("checkpoints"),
            )
        except turns.TurnsError as error:
            raise StoryError(str(error)) from None


def _measured(job: GPUJob) -> bool:
    held = job.status.reservation
    return held is not None and held.source is ReservationSource.MEASURED


def _from_profile(job: GPUJob) -> bool:
    held = job.status.reservation
    return held is not None and held.source is ReservationSource.PROFILE


def _succeeded(job: GPUJob) -> bool:
    return job.status.phase is JobPhase.SUCCEEDED


def _resumed(job: GPUJob) -> bool:
    return job.status.resumed_from_step is not None


def _past(step: int) -> Callable[[GPUJob], bool]:
    def check(job: GPUJob) -> bool:
        measured = job.status.measurement
        return measured is not None and measured.step >= step

    return check


def _refused_by_unmanaged_process(job: GPUJob) -> bool:
    return any(
        condition.type == "Scheduled" and "unmanaged processes" in condition.message
        for condition in job.status.conditions
    )
