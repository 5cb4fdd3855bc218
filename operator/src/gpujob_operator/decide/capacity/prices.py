"""The price of a GPU-hour, and how likely a spot node is to be reclaimed, by pool and from
observation.

A pool is the nodes of one instance type in one zone, which a cloud reclaims together. Each pool has
the observed node-hours of its nodes and the number of reclaimed nodes. The rate is the posterior
mean of a Poisson rate with a gamma prior:

    interruptions per hour = (prior interruptions + observed) / (prior hours + observed hours)
"""

from collections.abc import Mapping

from gpujob_api.gpunode import GPUNode
from gpujob_operator.decide.capacity.model_names import means, words
from gpujob_operator.decide.model.configuration import Configuration
from gpujob_operator.decide.model.snapshot import NodeView, Snapshot, pool_of

# The prior is one interruption in this many hours. It is an assumption, and observing one node for
# a day outweighs half of it.
PRIOR_HOURS = 24.0
_SECONDS_PER_HOUR = 3600


def rates(snapshot: Snapshot) -> dict[str, float]:
    """Returns the interruptions of a node per hour, by pool.

    They are rounded to two digits, so that less than an hour on one node changes no decision.
    """
    return {
        pool.name: float(f"{(1 + pool.interruptions) / (PRIOR_HOURS + pool.node_hours):.1e}")
        for pool in snapshot.spot_pools
    }


def interruptions_per_hour(node: NodeView, rates: Mapping[str, float]) -> float:
    """Returns the expected interruptions of the node per hour, or 0 if it is not a spot node."""
    return rates.get(pool_of(node), 1 / PRIOR_HOURS) if node.spot else 0.0


def price_with_losses(
    price_per_gpu_hour: float, interruptions_per_hour: float, configuration: Configuration
) -> float:
    """Returns the price of an hour of completed work.

    Each interruption also costs the grace period and the restart.
    """
    lost_seconds = configuration.termination_grace_seconds + configuration.restart_seconds
    lost_share = interruptions_per_hour * lost_seconds / _SECONDS_PER_HOUR
    return price_per_gpu_hour * (1 + lost_share)


def price_of(gpu_node: GPUNode, view: NodeView, configuration: Configuration) -> float | None:
    if gpu_node.spec.price_per_gpu_hour is not None:
        return gpu_node.spec.price_per_gpu_hour
    models = sorted({gpu.model for gpu in gpu_node.status.gpus})
    found = (price_of_model(model, configuration, spot=view.spot) for model in models)
    return next((price for price in found if price is not None), None)


def price_of_model(model: str, configuration: Configuration, *, spot: bool) -> float | None:
    """Returns the price by the model's full name, or else by the words that people use.

    H100 is the price of an NVIDIA H100 80GB HBM3. The name with the most words counts if several
    match.
    """
    table = configuration.spot_price_per_gpu_hour if spot else configuration.price_per_gpu_hour
    if model in table:
        return table[model]
    meant = [name for name in table if means(name, model)]
    return table[max(meant, key=lambda name: (len(words(name)), name))] if meant else None
