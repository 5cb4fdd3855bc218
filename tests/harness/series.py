"""All series of the operator, before anything happened."""

from prometheus_client import Metric

from gpujob_operator.telemetry.gauges import Gauges
from gpujob_operator.telemetry.metrics import Metrics


def families() -> list[Metric]:
    metrics = Metrics()
    Gauges(metrics)
    return [*metrics.registry.collect()]


def labels_of_gauges() -> dict[str, set[str]]:
    """The labels of each series of a snapshot."""
    # Families have them for their samples alone.
    return {one.name: {*vars(one).get("_labelnames", ())} for one in Gauges(Metrics()).collect()}
