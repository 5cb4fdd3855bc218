"""Profiles that no job has used for as long as they are kept."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpujob_api.gpuprofile import GPUProfile
from gpujob_operator.decide.cache.deadlines import Deadlines
from gpujob_operator.decide.cache.job_entry import ProfileKey
from gpujob_operator.decide.measurement.profile import last_measured_at


@dataclass(slots=True)
class ProfileExpiries:
    """With 0 `days` none ever expires."""

    days: int
    _later: Deadlines[ProfileKey] = field(default_factory=lambda: Deadlines[ProfileKey]())
    # Those whose time has come, until they are gone or used.
    _now: set[ProfileKey] = field(default_factory=set[ProfileKey])

    def put(self, key: ProfileKey, profile: GPUProfile | None) -> None:
        """The profile as it is now; None: it is gone."""
        self._later.drop(key)
        self._now.discard(key)
        if profile is None or not self.days:
            return
        moment = last_measured_at(profile)
        if moment is not None:
            self._later.put(key, moment + timedelta(days=self.days))

    def due(self, now: datetime) -> list[ProfileKey]:
        """In every cycle until they are gone, in order."""
        self._now.update(self._later.due(now))
        return sorted(self._now)
