"""Ends that a pod brings upon itself: it ran, or stored, more than its own template allows. They
follow the job to every node, so they count as its failures."""

from gpujob_operator.decide.model.snapshot import PodView

DEADLINE_EXCEEDED = "DeadlineExceeded"
EVICTED = "Evicted"
# The kubelet's words for a limit of the pod itself. Of a node that ran short it says "The node was
# low on resource".
_OWN_STORAGE = (
    "Usage of EmptyDir volume",
    "Pod ephemeral local storage usage exceeds",
    "exceeded its local ephemeral storage limit",
)


def exceeded(pod: PodView) -> str:
    """Which of its own limits ended the pod, for people; "" if none did. A pod whose containers
    then ended with 0 may have Succeeded."""
    if not pod.finished:
        return ""
    if pod.reason == DEADLINE_EXCEEDED:
        return f"worker {pod.rank} ran for longer than the template's activeDeadlineSeconds"
    if pod.reason == EVICTED and any(words in pod.message for words in _OWN_STORAGE):
        return f"worker {pod.rank} was evicted for its own storage: {pod.message[-400:]}"
    return ""
