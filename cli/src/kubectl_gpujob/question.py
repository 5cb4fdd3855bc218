"""The input of simulate: files and options become edits. Errors name the file and the field."""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import yaml

from gpujob_api.codec import FieldError, decode
from gpujob_api.gpujob import GPUJob, GPUJobSpec
from gpujob_api.gpuqueue import GPUQueue, GPUQueueSpec
from gpujob_api.manifest import gpujob_from_manifest, gpuqueue_from_manifest
from gpujob_api.meta import GROUP, Metadata
from gpujob_operator.decide.simulation.edits import Edits, MoreNodes
from kubectl_gpujob.errors import NotCheckedError, UserError
from kubectl_gpujob.hints import with_hints
from kubectl_gpujob.strictness import refuse_missing_images, refuse_unknown_fields

# Returns why the API server rejects a GPUJob in a namespace: `Cluster.refusal`.
Refusal = Callable[[Mapping[str, Any], str], str]
# Jobs may be in it even without a GPUQueue of this name.
DEFAULT_QUEUE = "default"
FILE_BYTES_MAX = 8 * 1024**2
# Fields of a queue that the command line can set, and their path in its spec.
_QUOTA_FIELDS: Mapping[str, tuple[str, ...]] = {
    "gpus": ("nominal", "gpus"),
    "gpuMemory": ("nominal", "gpuMemory"),
    "nominal.gpus": ("nominal", "gpus"),
    "nominal.gpuMemory": ("nominal", "gpuMemory"),
    "borrowingLimit.gpus": ("borrowingLimit", "gpus"),
    "borrowingLimit.gpuMemory": ("borrowingLimit", "gpuMemory"),
    "weight": ("weight",),
}


def read_text(path: Path) -> str:
    """Returns a file's text; `-` is standard input. Raises `UserError`."""
    try:
        if str(path) == "-":
            return sys.stdin.read(FILE_BYTES_MAX)
        if path.stat().st_size > FILE_BYTES_MAX * 32:
            raise UserError(f"{path}: is larger than {FILE_BYTES_MAX * 32} bytes")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read: {error}") from None


def read_files(paths: Sequence[Path]) -> Mapping[str, str]:
    """Returns the texts of the files by name. Raises `UserError`."""
    return {str(path): read_text(path) for path in paths}


def changes_of(
    files: Mapping[str, str],
    *,
    namespace: str,
    queues: Iterable[GPUQueue],
    add_nodes: Iterable[str] = (),
    without_nodes: Iterable[str] = (),
    quotas: Iterable[str] = (),
    refusal: Refusal | None = None,
) -> Edits:
    """Returns the requested edits. `files` are texts by name, and `queues` the existing ones.

    Raises `UserError`.
    """
    jobs: list[GPUJob] = []
    changed = {}
    for name, content in files.items():
        for noun in nouns_of(content, name, namespace, refusal):
            if isinstance(noun, GPUJob):
                jobs.append(noun)
            else:
                changed[noun.metadata.name] = noun
    known = {queue.metadata.name: queue for queue in queues} | changed
    for text in quotas:
        queue = with_quota(text, known)
        known[queue.metadata.name] = changed[queue.metadata.name] = queue
    return Edits(
        jobs=tuple(jobs),
        queues=tuple(changed.values()),
        more_nodes=tuple(more_nodes(text) for text in add_nodes),
        without_nodes=tuple(without_nodes),
    )


def nouns_of(
    text: str, name: str, namespace: str, refusal: Refusal | None = None
) -> list[GPUJob | GPUQueue]:
    """Returns the jobs and queues of a file with one or several documents.

    Objects of other groups, such as a job's claim, are skipped. `refusal` queries the API server.
    Raises `UserError`.
    """
    try:
        documents = [one for one in yaml.safe_load_all(text) if one is not None]
    except yaml.YAMLError as error:
        raise UserError(f"{name}: is not YAML: {error}") from None
    found: list[GPUJob | GPUQueue] = []
    for number, document in enumerate(documents, 1):
        where = f"{name}, document {number}" if len(documents) > 1 else name
        try:
            noun = _noun(document, where, namespace, refusal)
        except FieldError as error:
            raise UserError(f"{where}: {with_hints(str(error))}") from None
        if noun is not None:
            found.append(noun)
    if not found:
        what = "has neither a GPUJob nor a GPUQueue" if documents else "is empty"
        raise UserError(f"{name}: {what}; it needs a GPUJob or a GPUQueue")
    return found


def claims_in(files: Mapping[str, str], namespace: str) -> set[tuple[str, str]]:
    """Returns namespace and name of each claim in files that `changes_of` has read."""
    found: set[tuple[str, str]] = set()
    for content in files.values():
        for document in yaml.safe_load_all(content):
            if document is None or document.get("kind") != "PersistentVolumeClaim":
                continue
            metadata = document.get("metadata")
            if isinstance(metadata, Mapping):
                known = cast("Mapping[str, Any]", metadata)
                found.add((str(known.get("namespace") or namespace), str(known.get("name"))))
    return found


def _noun(
    document: object, where: str, namespace: str, refusal: Refusal | None
) -> GPUJob | GPUQueue | None:
    """Returns the object, or None for one of another group."""
    if not isinstance(document, Mapping):
        raise FieldError("document", f"must be an object; got {type(document).__name__}")
    manifest = cast("Mapping[str, Any]", document)
    kind, version = manifest.get("kind"), manifest.get("apiVersion")
    if kind == "GPUQueue":
        queue = gpuqueue_from_manifest(manifest)
        refuse_unknown_fields(GPUQueueSpec, manifest)
        return queue
    if kind != "GPUJob":
        if isinstance(kind, str) and isinstance(version, str) and not _is_ours(version):
            return None
        raise FieldError("kind", f"must be GPUJob or GPUQueue; got {kind!r}")
    _ask(manifest, where, namespace, refusal)
    job = gpujob_from_manifest(manifest)
    refuse_unknown_fields(GPUJobSpec, manifest)
    refuse_missing_images(job)
    return replace(
        job,
        metadata=replace(job.metadata, namespace=job.metadata.namespace or namespace),
    )


def _is_ours(version: str) -> bool:
    return version.partition("/")[0] == GROUP


def _ask(manifest: Mapping[str, Any], where: str, namespace: str, refusal: Refusal | None) -> None:
    """Raises `UserError` with the API server's own words. If it cannot be reached, only the later
    checks apply.
    """
    if refusal is None:
        return
    metadata = manifest.get("metadata")
    own = cast("Mapping[str, Any]", metadata).get("namespace") if metadata else None
    try:
        words = refusal(manifest, own if isinstance(own, str) and own else namespace)
    except NotCheckedError as error:
        sys.stderr.write(f"note: {where}: not checked by the API server: {error}\n")
        return
    if words:
        raise UserError(f"{where}: {with_hints(words)}")


def more_nodes(text: str) -> MoreNodes:
    """Parses NODE=COUNT. Raises `UserError`."""
    like, _, count = text.rpartition("=")
    if not like or not count.isascii() or not count.isdigit() or len(count) > 6:
        raise UserError(f"--add-nodes: must be NODE=COUNT, COUNT more like NODE; got {text!r}")
    return MoreNodes(like, int(count))


def with_quota(text: str, queues: Mapping[str, GPUQueue]) -> GPUQueue:
    """Parses QUEUE.FIELD=VALUE. Raises `UserError`."""
    path, equals, value = text.partition("=")
    name, _, field = path.partition(".")
    place = _QUOTA_FIELDS.get(field)
    if not equals or place is None:
        fields = ", ".join(_QUOTA_FIELDS)
        raise UserError(
            f"--quota: must be QUEUE.FIELD=VALUE with FIELD one of {fields}; got {text!r}"
        )
    number = int(value) if value.isascii() and value.isdigit() and len(value) < 12 else value
    try:
        queue = queues.get(name) or GPUQueue(Metadata(name))
        return replace(queue, spec=_with_field(queue.spec, place, number))
    except FieldError as error:
        raise UserError(f"--quota {path}: {error.problem}") from None


def refuse_unused_queues(
    quotas: Iterable[str], queues: Iterable[GPUQueue], jobs: Iterable[GPUJob]
) -> None:
    """Rejects quotas for a queue that neither exists nor is named by a job, as a typing error.

    Raises `UserError`.
    """
    known = {DEFAULT_QUEUE, *(queue.metadata.name for queue in queues)}
    used = {job.spec.queue for job in jobs}
    for text in quotas:
        name = text.partition(".")[0]
        if name not in known | used:
            existing = ", ".join(sorted(known))
            raise UserError(
                f"--quota {text}: GPUQueue {name!r} does not exist, and no job names it; "
                f"existing queues: {existing}"
            )


def _with_field(spec: GPUQueueSpec, place: tuple[str, ...], value: object) -> GPUQueueSpec:
    """Sets a field through the codec, so that values are parsed and bounded as in a manifest."""
    head, *tail = place
    if not tail:
        part = decode(GPUQueueSpec, {head: value}, "spec")
        return replace(spec, weight=part.weight)
    part = decode(GPUQueueSpec, {head: {tail[0]: value}}, "spec")
    quota = part.nominal if head == "nominal" else part.borrowing_limit
    before = spec.nominal if head == "nominal" else spec.borrowing_limit
    after = (
        replace(before, gpus=quota.gpus)
        if tail[0] == "gpus"
        else replace(before, gpu_memory=quota.gpu_memory)
    )
    return (
        replace(spec, nominal=after) if head == "nominal" else replace(spec, borrowing_limit=after)
    )
