"""kubectl as the connection to the API server.

kubectl brings the kubeconfig, the contexts and every way to authenticate, and starts within 50 ms.
Requests name paths of the API (`--raw`), so no discovery precedes them.
"""

import json
import re
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlencode

from gpujob_api.meta import GROUP
from kubectl_gpujob.errors import NotCheckedError, NotFoundError, UserError

REQUEST_SECONDS_MAX = 30
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_SERVER_ERROR = re.compile(r"Error from server \((?P<reason>\w+)\): (?P<message>.*)", re.DOTALL)
_INVALID = re.compile(r'The \w+ "[^"]*" is invalid:(?P<message>.*)', re.DOTALL)
# The API server precedes its reasons by the object, which is known here.
_OBJECT = re.compile(
    r'^[\w.]+ "[^"]*" is (invalid|forbidden): |^\w+ in version "\w+" cannot be handled as a \w+: '
)
# One answer of the API server is not larger: lists come in pages.
ANSWER_CHARACTERS_MAX = 256 * 1024 * 1024
_REFUSALS = frozenset({"BadRequest", "Forbidden", "Invalid", "NotFound"})


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster and namespace, by kubectl's flags of the same names."""

    kubeconfig: Path | None = None
    context: str | None = None
    namespace: str | None = None


class KubectlError(Exception):
    """kubectl ended with an error. `reason` is the API server's word, or "" without its answer."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason
        self.message = message


class Kubectl:
    """Runs kubectl for one cluster."""

    def __init__(self, target: Target, program: str = "kubectl") -> None:
        self._program = program
        self._flags: list[str] = []
        if target.kubeconfig is not None:
            self._flags += ["--kubeconfig", str(target.kubeconfig)]
        if target.context is not None:
            self._flags += ["--context", target.context]
        # kubectl takes an empty one as no namespace.
        self._namespace = target.namespace or None
        if self._namespace is not None and not is_name(self._namespace):
            raise UserError(f"--namespace: {self._namespace!r} is no name of a namespace")

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags that name the cluster, as another kubectl takes them."""
        return tuple(self._flags)

    @property
    def namespace(self) -> str:
        """The namespace of the flag, else of the context, else `default`. Raises `UserError`."""
        if self._namespace is None:
            path = "jsonpath={..namespace}"
            try:
                found = self._output(["config", "view", "--minify", "-o", path])
            except KubectlError as failure:
                raise _explained("the kubeconfig", failure) from None
            self._namespace = found.strip() or "default"
        return self._namespace

    def get(self, what: str, path: str, **query: str) -> Mapping[str, Any]:
        """Returns the object or the page of a list at `path`.

        `what` names it in errors. Raises `UserError`, and `NotFoundError` if there is no such
        object.
        """
        try:
            return self._object(["get", "--raw", _with_query(path, query)])
        except KubectlError as failure:
            raise _explained(what, failure) from None

    def create(self, path: str, manifest: Mapping[str, Any], **query: str) -> Mapping[str, Any]:
        """Creates the object, as strict as kubectl. Raises `KubectlError`."""
        strict = _with_query(path, {"fieldValidation": "Strict", **query})
        return self._object(["create", "--raw", strict, "-f", "-"], json.dumps(manifest))

    def patch(
        self, what: str, kind: str, namespace: str, name: str, patch: Mapping[str, Any]
    ) -> Mapping[str, Any]:
        """Applies a merge patch. `kind` is kubectl's name of it. Raises `UserError`."""
        command = ["patch", kind, name, "-n", namespace, "--type", "merge", "-o", "json"]
        try:
            return self._object([*command, "-p", json.dumps(patch)])
        except KubectlError as failure:
            raise _explained(what, failure) from None

    def delete(self, what: str, path: str) -> None:
        """Deletes the object. Raises `UserError`."""
        try:
            self._output(["delete", "--raw", path])
        except KubectlError as failure:
            raise _explained(what, failure) from None

    @contextmanager
    def stream(self, path: str, **query: str) -> Generator["Stream"]:
        """Opens an answer that has no end, such as a log that is followed."""
        command = [self._program, *self._flags, "get", "--raw", _with_query(path, query)]
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL
            )
        except OSError as error:
            raise _no_program(self._program, error) from None
        # It closes the pipes and waits for the end.
        with process:
            assert process.stdout is not None, "it is a pipe"
            assert process.stderr is not None, "it is a pipe"
            try:
                yield Stream(process, process.stdout, process.stderr)
            finally:
                process.kill()

    def _object(self, arguments: Sequence[str], text: str = "") -> Mapping[str, Any]:
        answer = self._output(arguments, text)
        try:
            return json.loads(answer)
        except ValueError:
            raise KubectlError("", f"the answer is not JSON: {answer[:200]}") from None

    def _output(self, arguments: Sequence[str], text: str = "") -> str:
        timeout = f"--request-timeout={REQUEST_SECONDS_MAX}s"
        command = [self._program, *self._flags, timeout, *arguments]
        try:
            ended = subprocess.run(
                command, input=text, capture_output=True, text=True, check=False,
                timeout=2 * REQUEST_SECONDS_MAX,
            )  # fmt: skip
        except OSError as error:
            raise _no_program(self._program, error) from None
        except subprocess.TimeoutExpired:
            seconds = 2 * REQUEST_SECONDS_MAX
            raise UserError(f"kubectl gave no answer within {seconds} s") from None
        if ended.returncode:
            raise failure_of(ended.stderr)
        if len(ended.stdout) > ANSWER_CHARACTERS_MAX:
            raise UserError(f"an answer of {len(ended.stdout)} characters is too large")
        return ended.stdout


@dataclass(frozen=True, slots=True)
class Stream:
    """An answer that is read while it comes."""

    process: "subprocess.Popen[bytes]"
    data: IO[bytes]
    errors: IO[bytes]

    def failure(self) -> KubectlError | None:
        """Returns why the stream ended, once all data are read. None if the server ended it."""
        said = self.errors.read().decode(errors="replace")
        return failure_of(said) if self.process.wait() else None


def is_name(text: str) -> bool:
    """Returns whether an object can have this name. No other text may be part of a path."""
    return _NAME.fullmatch(text) is not None


def failure_of(said: str) -> KubectlError:
    """Returns the failure in kubectl's words on standard error."""
    text = "\n".join(line for line in said.splitlines() if not line.startswith("Warning: "))
    text = text.strip()
    if (found := _SERVER_ERROR.search(text)) is not None:
        return KubectlError(found["reason"], found["message"].strip())
    if (found := _INVALID.search(text)) is not None:
        return KubectlError("Invalid", _one_line(found["message"]))
    if "You must be logged in" in text:
        return KubectlError("Unauthorized", text.removeprefix("error: "))
    return KubectlError("", text.removeprefix("error: ") or "kubectl ended without a message")


def refusal_of(failure: KubectlError, namespace: str) -> str:
    """Returns why the API server would not create an object, or "" if only the name is in use.

    Raises `NotCheckedError` if it did not check the object, and `UserError` if it was not reached
    or does not know the user.
    """
    if failure.reason == "AlreadyExists":
        return ""
    if failure.reason in ("", "Unauthorized"):
        raise _explained(f"gpujobs in namespace {namespace}", failure)
    if failure.reason == "Forbidden" and "cannot create resource" in failure.message:
        raise NotCheckedError(f"you may not create gpujobs in namespace {namespace}")
    if failure.reason in _REFUSALS:
        return _OBJECT.sub("", failure.message)
    raise NotCheckedError(f"the API server did not check it: {failure.message}")


def _one_line(message: str) -> str:
    """Returns a list of several problems in one line, without the server's remark about others.

    A pattern is left out if another problem of the same field has words.
    """
    lines = [line.strip().removeprefix("* ") for line in message.splitlines() if line.strip()]
    kept = [line for line in lines if not line.startswith("<nil>: ")]
    fields = [line.partition(": ")[0] for line in kept if not _is_pattern(line)]
    kept = [line for line in kept if not _is_pattern(line) or line.partition(": ")[0] not in fields]
    return "; ".join(kept or lines)


def _is_pattern(line: str) -> bool:
    return " in body should match '" in line


def _explained(what: str, failure: KubectlError) -> UserError:
    if failure.message.startswith("current-context must exist"):
        return UserError(
            "kubectl has no current context, or its kubeconfig file does not exist: "
            "kubectl config get-contexts lists the contexts"
        )
    if failure.reason == "NotFound":
        if "could not find the requested resource" in failure.message:
            crd = f"kubectl get crd gpujobs.{GROUP}"
            return NotFoundError(f"not found: {what} (is GPUJob installed? {crd})")
        return NotFoundError(f"not found: {what}")
    if failure.reason == "Unauthorized":
        return UserError("Unauthorized (401): check your kubeconfig credentials")
    if failure.reason == "Forbidden":
        return UserError(f"you may not use {what} (403 Forbidden): {failure.message}")
    if failure.reason:
        return UserError(f"the API server refuses {what}: {failure.message}")
    return UserError(failure.message)


def _no_program(program: str, error: OSError) -> UserError:
    if isinstance(error, FileNotFoundError):
        return UserError(
            f"{program} is not installed or not in PATH: https://kubernetes.io/docs/tasks/tools/"
        )
    return UserError(f"{program} cannot be run: {error}")


def _with_query(path: str, query: Mapping[str, str]) -> str:
    return f"{path}?{urlencode(query)}" if query else path
