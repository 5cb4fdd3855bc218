"""Reads the operator's own kinds. Implausible readings are left out and counted (I10, I14)."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, cast

from gpujob_api.bounds import INTEGER_MAX
from gpujob_api.codec import FieldError, decode, parse_time
from gpujob_api.gpujob import GPUJob, GPUJobSpec
from gpujob_api.gpunode import GPU, GPUS_MAX, PROCESSES_MAX, GPUNode, GPUNodeStatus, GPUProcess
from gpujob_api.manifest import (
    gpujob_from_manifest,
    gpunode_from_manifest,
    metadata_from_manifest,
    read_spec,
)
from gpujob_api.meta import Metadata
from gpujob_operator.decide.model.snapshot import InvalidJob
from gpujob_operator.read.shapes import mapping, mappings, text

# Called with a short reason, from a closed set, for every reading that is left out.
Dropped = Callable[[str], None]


def read_job(
    manifest: Mapping[str, Any], spec_reader: Callable[[object], GPUJobSpec] = read_spec
) -> GPUJob | InvalidJob:
    """Returns a job, or the problem with it.

    The API server may have accepted what the API types reject.
    """
    try:
        return gpujob_from_manifest(manifest, spec_reader)
    except FieldError as error:
        observed = mapping(manifest.get("status")).get("observedGeneration")
        return InvalidJob(
            metadata=metadata_from_manifest(manifest.get("metadata")),
            field=error.field,
            problem=error.problem,
            observed_generation=_generation(observed),
        )


def _generation(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value <= INTEGER_MAX else 0


def read_gpu_node(manifest: Mapping[str, Any], dropped: Dropped) -> GPUNode:
    """Returns a GPU node without implausible GPUs and processes.

    Raises `FieldError` for any other problem.
    """
    status = mapping(manifest.get("status"))
    node = gpunode_from_manifest({**manifest, "status": {**status, "gpus": []}})
    gpus = read_gpus(status.get("gpus"), dropped).values()
    found = tuple(gpu for gpu in gpus if gpu is not None)
    return replace(node, status=replace(node.status, gpus=found))


def read_gpus(value: object, dropped: Dropped) -> dict[str, GPU | None]:
    """Returns the GPUs of a list by UUID, with None for an implausible GPU.

    GPUs without a UUID are left out.
    """
    listed = cast("list[object]", value) if isinstance(value, list) else []
    found: dict[str, GPU | None] = {}
    for entry in listed[:GPUS_MAX]:
        gpu = _read_gpu(entry, dropped)
        uuid = gpu.uuid if gpu is not None else text(mapping(entry).get("uuid"))
        if gpu is not None and found.get(uuid) is not None:
            dropped("duplicate_uuid")
        if uuid and (gpu is not None or uuid not in found):
            found[uuid] = gpu
    return found


def read_status(status: Mapping[str, Any]) -> GPUNodeStatus:
    """Returns a status without GPUs. Raises `FieldError`."""
    return decode(GPUNodeStatus, status, "status")


def written_at(manifest: Mapping[str, Any]) -> datetime | None:
    """Returns when the API server last stored the object's status, on its own clock.

    Returns None if the object does not contain the time.
    """
    times: list[datetime] = []
    for entry in mappings(mapping(manifest.get("metadata")).get("managedFields")):
        if entry.get("subresource") != "status":
            continue
        try:
            times.append(parse_time(text(entry.get("time"))))
        except (ValueError, OverflowError):
            continue
    return max(times, default=None)


def _read_gpu(entry: object, dropped: Dropped) -> GPU | None:
    """Returns a GPU without implausible processes, or None if the GPU itself is implausible."""
    if not isinstance(entry, Mapping):
        dropped("gpu")
        return None
    fields = cast("Mapping[str, Any]", entry)
    try:
        gpu = decode(GPU, {**fields, "processes": []})
    except FieldError:
        dropped("gpu")
        return None
    entries = fields.get("processes")
    listed = cast("list[object]", entries) if isinstance(entries, list) else []
    processes = [_read_process(one, gpu, dropped) for one in listed[:PROCESSES_MAX]]
    return replace(gpu, processes=tuple(one for one in processes if one is not None))


def _read_process(entry: object, gpu: GPU, dropped: Dropped) -> GPUProcess | None:
    try:
        process = decode(GPUProcess, entry)
    except FieldError:
        dropped("process")
        return None
    if not _sane(process, gpu):
        dropped("process")
        return None
    return process


def _sane(process: GPUProcess, gpu: GPU) -> bool:
    utilization = process.utilization_percent
    return 0 <= process.memory_bytes <= gpu.memory_total_bytes and (
        utilization is None or 0 <= utilization <= 100
    )


def same_noun(one: Any, other: Any) -> bool:
    """Returns whether two states of an object differ at most in their versions."""
    same_metadata = _without_version(one.metadata) == _without_version(other.metadata)
    return same_metadata and replace(one, metadata=other.metadata) == other


def _without_version(metadata: Metadata) -> Metadata:
    return replace(metadata, resource_version="")
