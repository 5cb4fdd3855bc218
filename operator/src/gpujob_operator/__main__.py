"""`gpujob-operator run` and `gpujob-operator replay FILE [--why JOB]`."""

import asyncio
import os
import socket
import sys
from pathlib import Path

from gpujob_api.codec import FieldError
from gpujob_operator.cycle import cycle_from_text, find_job, replay
from gpujob_operator.decide.explain.placement_explanation import explain_placement
from gpujob_operator.decide.explain.words import rows
from gpujob_operator.decide.planner import Planner, plan
from gpujob_operator.decide.services.plan import plan_services
from gpujob_operator.options import RunOptions, parse_arguments, run_options
from gpujob_operator.telemetry.logs import configure_logs

EXIT_DIFFERENT = 1
EXIT_USAGE = 2


def main() -> int:
    """Runs the command. Returns the exit code.

    It is 0 if the operator was stopped or the decision is the same, 1 for another decision, and 2
    for bad input.
    """
    arguments = parse_arguments()
    try:
        if arguments.command == "replay":
            return _replay(arguments.file, arguments.why)
        return _run(run_options(arguments, f"{socket.gethostname()}-{os.getpid()}"))
    except FieldError as error:
        print(f"gpujob-operator: {error}", file=sys.stderr)
        return EXIT_USAGE


def _run(options: RunOptions) -> int:
    configure_logs(options.log_format, options.log_level)
    # Imported here because a replay needs neither kopf nor the Kubernetes client.
    from gpujob_operator.client.connection import BadConnection
    from gpujob_operator.run import Operator

    async def run() -> None:
        await Operator(options, Planner(), plan_services).run()

    try:
        asyncio.run(run())
    except BadConnection as error:
        print(f"gpujob-operator: {error}", file=sys.stderr)
        return EXIT_USAGE
    return 0


def _replay(path: Path, why: str | None) -> int:
    try:
        text = path.read_text()
    except OSError as error:
        raise FieldError("FILE", str(error)) from None
    cycle = cycle_from_text(text)
    difference = replay(cycle, plan)
    print("\n".join(difference) if difference else "same: the decision equals the one in the file")
    if why is not None:
        job = find_job(cycle.snapshot.jobs, why)
        found = explain_placement(cycle.snapshot, cycle.now, job.metadata.uid)
        print("\n".join(f"{label}: {text}" for label, text in rows(found)))
    return EXIT_DIFFERENT if difference else 0


if __name__ == "__main__":
    sys.exit(main())
