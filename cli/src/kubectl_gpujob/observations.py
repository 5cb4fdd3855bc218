"""The start of a simulation: the present cluster, or a cycle that the operator dumped."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

import yaml

from gpujob_api.codec import FieldError
from gpujob_api.gpunode import STATUS_SECONDS_MAX
from gpujob_operator.cycle import cycle_from_text
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.read.configuration import configuration_from_text
from gpujob_operator.read.snapshot import snapshot_of
from kubectl_gpujob.cluster import Cluster
from kubectl_gpujob.errors import UserError
from kubectl_gpujob.listing import Listing, read_all
from kubectl_gpujob.question import read_text


@dataclass(frozen=True, slots=True)
class Observation:
    """The start of a simulation: a snapshot, its time and its origin."""

    snapshot: Snapshot
    now: datetime
    source: str


def observation_from_cluster(cluster: Cluster, configuration: Path | None) -> Observation:
    """Returns the present cluster, with its operator's configuration unless another is given.

    Raises `UserError` naming a kind that may not be read.
    """
    return observation_of(read_all(cluster), configuration)


def observation_of(listing: Listing, configuration: Path | None) -> Observation:
    """Returns what was listed as the start of a simulation. Raises `UserError`."""
    chosen = _configuration(configuration)
    source = "the cluster"
    if chosen is None:
        chosen, whose = _operators(listing.configurations)
        source += f" ({whose})"
    return Observation(snapshot_of(listing.objects, _patient(chosen)), listing.now, source)


def _patient(configuration: Configuration) -> Configuration:
    """Tolerates older readings. The operator gets them from the agents, but objects have those
    written for people.
    """
    seconds = configuration.telemetry_stale_seconds + STATUS_SECONDS_MAX
    return replace(configuration, telemetry_stale_seconds=seconds)


def observation_from_dump(path: Path, configuration: Path | None) -> Observation:
    """Returns a dumped cycle, with its configuration unless another is given. Raises
    `UserError`.
    """
    chosen = _configuration(configuration)
    try:
        cycle = cycle_from_text(read_text(path))
    except FieldError as error:
        raise UserError(f"{path}: {error}") from None
    snapshot = cycle.snapshot
    if chosen is not None:
        snapshot = replace(snapshot, configuration=chosen)
    return Observation(snapshot, cycle.now, str(path))


def _configuration(path: Path | None) -> Configuration | None:
    if path is None:
        return None
    return _read(str(path), read_text(path))


def _operators(texts: Mapping[str, str] | None) -> tuple[Configuration, str]:
    """Returns the configuration of the cluster's operator, and its origin. Raises `UserError`."""
    if texts is None:
        return Configuration(), "all defaults: you may not read the operator's configuration"
    if not texts:
        return Configuration(), "all defaults: no operator's configuration was found"
    if len(texts) > 1:
        names = ", ".join(sorted(texts))
        raise UserError(f"there are {len(texts)} operators ({names}): choose a --configuration")
    [(name, text)] = texts.items()
    return _read(f"configmap {name}", text), f"configuration of {name}"


def _read(where: str, text: str) -> Configuration:
    try:
        return configuration_from_text(text)
    except (FieldError, yaml.YAMLError) as error:
        raise UserError(f"{where}: {error}") from None
