"""Processes that want the Lease."""

from gpujob_operator.leadership.lease import Leadership, LeaseSettings, Legacy
from tests.harness.clocks import FakeClock
from tests.harness.fake_kube import FakeKube

SECONDS = 15.0


class Candidate:
    """`knows` is what it would leave to the next one."""

    def __init__(self, kube: FakeKube, clock: FakeClock, identity: str) -> None:
        self.changes: list[bool] = []
        self.knows = identity
        self.inherited: list[str] = []
        self.restores = 0
        settings = LeaseSettings("gpujob-system", identity, seconds=SECONDS)
        self.leadership = Leadership(
            kube,
            settings,
            monotonic=clock.monotonic,
            sleep=clock.sleep,
            changed=self.changes.append,
            restored=self._restored,
            legacy=Legacy("known", write=lambda: self.knows, read=self.inherited.append),
        )

    def _restored(self) -> None:
        self.restores += 1

    async def attempt(self) -> bool:
        return await self.leadership.try_once()

    @property
    def leads(self) -> bool:
        return self.leadership.leads
