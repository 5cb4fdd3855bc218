"""Ends that a pod causes itself, by running longer or storing more than its template allows.

They follow the job to every node, so they count as its failures.
"""

from gpujob_operator.decide.model.snapshot import PodView

DEADLINE_EXCEEDED = "DeadlineExceeded"
EVICTED = "Evicted"
# The kubelet's messages for a limit of the pod itself. For a node that ran short the message is
# "The node was low on resource".
_OWN_STORAGE = (
    "Usage of EmptyDir volume",
    "Pod ephemeral local storage usage exceeds",
    "exceeded its local ephemeral storage limit",
)


def exceeded(pod: PodView) -> str:
    """Returns which of its own limits ended the pod, in words, or "".

    Such a pod may have Succeeded if its containers then ended with 0.
    """
    if not pod.finished:
        return ""
    if pod.reason == DEADLINE_EXCEEDED:
        return f"worker {pod.rank} ran for longer than the template's activeDeadlineSeconds"
    if pod.reason == EVICTED and any(words in pod.message for words in _OWN_STORAGE):
        return f"worker {pod.rank} was evicted for its own storage: {pod.message[-400:]}"
    return ""
