"""The price of a GPU-hour, and how likely a spot node is to be reclaimed, by pool and from
observation.

A pool is the nodes of one instance type in one zone, which a cloud reclaims together. For each pool
it is known for how many node-hours its nodes were observed and how many of them were reclaimed. The
rate is the posterior mean of a Poisson rate with a gamma prior:

    interruptions per hour = (prior interruptions + observed) / (prior hours + observed hours)
"""

from collections.abc import Mapping

from gpujob_api.gpunode import GPUNode
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import NodeView, Snapshot, pool_of

# The prior: one interruption in this many hours. This is an assumption, and a day of one node
# outweighs half of it.
PRIOR_HOURS = 24.0
_SECONDS_PER_HOUR = 3600


def rates(snapshot: Snapshot) -> dict[str, float]:
    """Interruptions of a node per hour, by pool, rounded to two digits so that less than an hour on
    one node changes no decision.
    """
    return {
        pool.name: float(f"{(1 + pool.interruptions) / (PRIOR_HOURS + pool.node_hours):.1e}")
        for pool in snapshot.spot_pools
    }


def interruptions_per_hour(node: NodeView, rates: Mapping[str, float]) -> float:
    """Expected interruptions of the node per hour; 0 for a node that is not spot."""
    return rates.get(pool_of(node), 1 / PRIOR_HOURS) if node.spot else 0.0


def price_with_losses(
    price_per_gpu_hour: float, interruptions_per_hour: float, configuration: Configuration
) -> float:
    """Price of an hour of completed work: each interruption also costs the grace period and the
    restart.
    """
    lost_seconds = configuration.termination_grace_seconds + configuration.restart_seconds
    lost_share = interruptions_per_hour * lost_seconds / _SECONDS_PER_HOUR
    return price_per_gpu_hour * (1 + lost_share)


def price_of(gpu_node: GPUNode, view: NodeView, configuration: Configuration) -> float | None:
    if gpu_node.spec.price_per_gpu_hour is not None:
        return gpu_node.spec.price_per_gpu_hour
    table = configuration.spot_price_per_gpu_hour if view.spot else configuration.price_per_gpu_hour
    models = {gpu.model for gpu in gpu_node.status.gpus}
    prices = [table[model] for model in sorted(models) if model in table]
    return prices[0] if prices else None
