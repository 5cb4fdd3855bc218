"""`make demo`: a demo on a local cluster that checks its own claims. It exits with 1 if
one fails.
"""

import argparse
import sys
import time
from pathlib import Path

from gpujob_api.quantities import GIB
from gpujob_local.cluster.cluster import ClusterOptions, LocalCluster, NodeOptions
from gpujob_local.control_plane.manifests import REPOSITORY
from gpujob_local.demo.following import Follower, StoryError
from gpujob_local.demo.story import Story
from gpujob_local.demo.telling import Teller

CARD_BYTES = 2 * GIB


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m gpujob_local.demo", description=__doc__)
    parser.add_argument("--logs", type=Path, help="keep the logs of all components here")
    arguments = parser.parse_args()
    teller = Teller()
    started = time.monotonic()
    teller.chapter("A Kubernetes control plane, three nodes with CPU cards, agents, the operator")
    holds = _run(teller, arguments.logs)
    seconds = time.monotonic() - started
    sys.stdout.write(f"\n{'All claims hold' if holds else 'A CLAIM FAILED'}, {seconds:.0f} s.\n")
    return 0 if holds else 1


def _options() -> ClusterOptions:
    nodes = (
        NodeOptions("node-1", cards=3),
        NodeOptions("node-2", cards=1),
        NodeOptions("spot-1", cards=1, spot=True),
    )
    # A newcomer expects figures to move. A real cluster would write them less often.
    configuration = {"retryBackoffSeconds": 1.0, "progressWriteSeconds": 2.0}
    return ClusterOptions(nodes=nodes, card_bytes=CARD_BYTES, operator_configuration=configuration)


def _run(teller: Teller, logs: Path | None) -> bool:
    examples = REPOSITORY / "examples" / "demo"
    with (
        LocalCluster.start(_options(), say=lambda text: teller.say("cluster", text)) as cluster,
        Follower(cluster.client, teller) as follower,
    ):
        story = Story(cluster, follower, teller, examples, CARD_BYTES)
        try:
            story.tell()
        except StoryError as error:
            teller.claim("The demo ran to its end", False, str(error))
        teller.chapter("kubectl get gpujobs")
        sys.stdout.write(cluster.kubectl("get", "gpujobs").stdout)
        holds = teller.verdict()
        if logs is not None or not holds:
            where = logs or Path.cwd() / "build" / "demo-logs"
            teller.say("logs", f"kept in {cluster.copy_logs(where)}")
        return holds


if __name__ == "__main__":
    sys.exit(main())
