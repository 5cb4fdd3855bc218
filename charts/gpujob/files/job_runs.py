"""helm test: a small GPUJob gets a GPU, runs and succeeds. Removes the job again.

Everything that a job needs takes part: the CRD, the operator, an agent's readings, the kubelet.
"""

import json
import os
import ssl
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

SECONDS_MAX = float(os.environ.get("SECONDS_MAX", "300"))
PAUSE_SECONDS = float(os.environ.get("PAUSE_SECONDS", "1"))
REQUEST_SECONDS_MAX = 10
SERVER = os.environ.get("API_SERVER", "https://kubernetes.default.svc")
ACCOUNT = Path(os.environ.get("ACCOUNT_DIRECTORY", "/var/run/secrets/kubernetes.io/serviceaccount"))
API = f"{SERVER}/apis/gpujob.dev/v1alpha1"
JOB: dict[str, Any] = json.loads(os.environ["JOB"])
NAMESPACE, NAME = JOB["metadata"]["namespace"], JOB["metadata"]["name"]
JOBS = f"{API}/namespaces/{NAMESPACE}/gpujobs"


def call(method: str, url: str, body: object = None) -> tuple[int, dict[str, Any]]:
    """The code and the object in the answer; an error's message is in `message`."""
    certificate = ACCOUNT / "ca.crt"
    context = ssl.create_default_context(cafile=certificate) if certificate.exists() else None
    headers = {
        "Authorization": f"Bearer {(ACCOUNT / 'token').read_text()}",
        "Content-Type": "application/json",
    }
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers, method=method)  # noqa: S310
    try:
        with urllib.request.urlopen(request, timeout=REQUEST_SECONDS_MAX, context=context) as found:  # noqa: S310
            return found.status, json.load(found)
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        try:
            return error.code, json.loads(text)
        except ValueError:
            return error.code, {"message": text}
    except OSError as error:
        return 0, {"message": str(error)}


def must(what: str, answer: tuple[int, dict[str, Any]], *codes: int) -> dict[str, Any]:
    code, found = answer
    if code not in codes:
        raise SystemExit(f"{what}: answered {code} {found.get('message', '')}")
    return found


def need_a_gpu() -> None:
    nodes = must("GPUNodes", call("GET", f"{API}/gpunodes"), 200)["items"]
    gpus = sum(len(node.get("status", {}).get("gpus", [])) for node in nodes)
    if not nodes:
        raise SystemExit("no node has joined: kubectl label node NODE gpujob.dev/managed=true")
    if not gpus:
        names = ", ".join(sorted(node["metadata"]["name"] for node in nodes))
        raise SystemExit(f"no node shows a GPU: kubectl describe gpunode {names}")
    print(f"{len(nodes)} nodes with {gpus} GPUs", flush=True)


def remove() -> None:
    """Waits for the end of an earlier job of the name, or the new one would not be created."""
    until = time.monotonic() + SECONDS_MAX
    while call("DELETE", f"{JOBS}/{NAME}")[0] != 404:
        if time.monotonic() > until:
            raise SystemExit(f"{NAME} of an earlier test does not go away")
        time.sleep(PAUSE_SECONDS)


def conditions(job: dict[str, Any]) -> dict[str, dict[str, str]]:
    return {one["type"]: one for one in job.get("status", {}).get("conditions", [])}


def follow() -> str:
    """Empty once the job has succeeded, else what hindered it."""
    until, shown = time.monotonic() + SECONDS_MAX, ""
    while True:
        found = must("the job", call("GET", f"{JOBS}/{NAME}"), 200, 0, 500, 503)
        seen = conditions(found)
        text = found.get("status", {}).get("summary", {}).get("reason", "")
        if text != shown:
            shown = text
            print(f"{found.get('status', {}).get('phase', '')}: {shown}", flush=True)
        if seen.get("Succeeded", {}).get("status") == "True":
            return ""
        if seen.get("Finished", {}).get("status") == "True":
            return f"the job failed: {seen.get('Failed', {}).get('message', shown)}"
        if time.monotonic() > until:
            return f"no end after {SECONDS_MAX:.0f} s; the job says: {shown or 'nothing'}"
        time.sleep(PAUSE_SECONDS)


need_a_gpu()
remove()
must("creating the job", call("POST", JOBS, JOB), 201)
problem = follow()
if problem:
    # The job stays, so that it can be looked at.
    raise SystemExit(f"{problem} (kubectl gpujob why {NAME} --namespace {NAMESPACE})")
call("DELETE", f"{JOBS}/{NAME}")
print("the job succeeded")
