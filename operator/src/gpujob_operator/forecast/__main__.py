"""The child process: one question on standard input, one answer in JSON on standard output."""

import json
import os
import resource
import sys
import time
from contextlib import suppress
from pathlib import Path

from gpujob_api.codec import encode
from gpujob_operator.decide.simulation.start_ranges import start_ranges
from gpujob_operator.forecast.wire import read_question

NICE = 10
# More memory than this is an error here, before it is one of the operator's container.
DATA_BYTES_MAX = 384 * 1024**2


def main() -> int:
    with suppress(OSError):
        os.nice(NICE)
    with suppress(OSError):
        # The kernel ends this process before the operator.
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (DATA_BYTES_MAX, DATA_BYTES_MAX))
    question = read_question(sys.stdin.buffer)
    found = start_ranges(
        question.snapshot,
        question.now,
        may_continue=lambda: time.process_time() < question.seconds_max,
    )
    intervals = {uid: encode(interval) for uid, interval in found.intervals.items()}
    answer = {"intervals": intervals, "draws": found.draws, "seconds": time.process_time()}
    sys.stdout.write(json.dumps(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
