"""How long a replica needs from SIGTERM until all accepted requests are answered."""

import math

from gpujob_api.gpuservice import GPUServiceSpec
from gpujob_api.serving import ServingSettings

# How long requests still arrive.
DELAY_SECONDS = ServingSettings().drain_delay_seconds
# The worker's last report and its exit.
END_SECONDS = 3.5
# That of a pod whose template has none, unless the operator's configuration has another one.
GRACE_SECONDS_DEFAULT = 30


def needed_grace_seconds(spec: GPUServiceSpec) -> int:
    """Returns the least terminationGracePeriodSeconds with which a full queue is answered.

    Queued requests are answered within the objective, because those that would be late are refused
    at arrival. A model that takes more than half of the objective for a batch may need longer,
    which is not known here.
    """
    queue_seconds = spec.objective.latency_milliseconds / 1000
    return math.ceil(DELAY_SECONDS + queue_seconds + END_SECONDS)
