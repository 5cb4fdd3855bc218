"""How full the ResourceQuota is by which the API server refuses a pod, and how much of it jobs use.

A ResourceQuota counts all pods of its namespace. If pods of no GPUJob fill it, no job that ends
makes room, and the user has to look elsewhere.
"""

import re
from collections.abc import Iterable, Mapping

from gpujob_api.quantities import format_memory
from gpujob_operator.decide.model.pod_requests import PodRequests

# The API server's message, with the resources that are short: "pods=10,requests.cpu=8".
_EXCEEDED = re.compile(
    r"exceeded quota: ([^\s,]+), requested: [^\s]+, used: ([^\s]+), limited: ([^\s]+)"
)
_RESOURCES_MAX = 4


def with_quota_figures(message: str, of_jobs: Iterable[PodRequests]) -> str:
    """Returns the API server's message, followed by the figures of the quota that it names.

    `of_jobs` are the requests of the jobs' pods in the namespace, without pods that have ended.
    """
    found = _EXCEEDED.search(message)
    if found is None:
        return message
    name, used, hard = found[1], _amounts(found[2]), _amounts(found[3])
    ours = _by_resource(of_jobs)
    figures = [
        f"{resource} {used[resource]} of {hard[resource]} used{_share(ours.get(resource))}"
        for resource in list(hard)[:_RESOURCES_MAX]
        if resource in used
    ]
    return f"{message}; ResourceQuota {name}: {', '.join(figures)}" if figures else message


def _amounts(text: str) -> dict[str, str]:
    pairs = (pair.split("=", 1) for pair in text.rstrip(".;,").split(","))
    return {pair[0]: pair[1] for pair in pairs if len(pair) == 2}


def _by_resource(pods: Iterable[PodRequests]) -> Mapping[str, str]:
    """Returns the pods' use of known resources, under each of a quota's names for them."""
    count = cpu_milli = memory_bytes = 0
    for pod in pods:
        count += 1
        cpu_milli += pod.cpu_milli
        memory_bytes += pod.memory_bytes
    cpu = f"{cpu_milli / 1000:g}"
    memory = format_memory(memory_bytes)
    return {
        "pods": str(count),
        **dict.fromkeys(("cpu", "requests.cpu"), cpu),
        **dict.fromkeys(("memory", "requests.memory"), memory),
    }


def _share(of_jobs: str | None) -> str:
    return "" if of_jobs is None else f" ({of_jobs} by pods of GPUJobs)"
