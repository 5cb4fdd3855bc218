"""Logs names of the price tables that mean no GPU model of the cluster, because such a price never
counts.
"""

from gpujob_operator.decide.capacity.model_names import price_names_without_model
from gpujob_operator.decide.model.snapshot import Snapshot
from gpujob_operator.telemetry.logs import Log

log = Log(__name__)


class PriceNames:
    """Checks the names once, when the first GPUs are known."""

    def __init__(self) -> None:
        self._is_done = False

    def check(self, snapshot: Snapshot) -> None:
        if self._is_done:
            return
        models = {gpu.model for node in snapshot.gpu_nodes for gpu in node.status.gpus}
        if not models:
            return
        self._is_done = True
        if names := price_names_without_model(snapshot.configuration, models):
            log.warning("no GPU has the model of these prices", names=names, models=sorted(models))
