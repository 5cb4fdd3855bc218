"""`python -m gpujob_operator.gate`: runs the gate of one service, as its environment describes."""

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from gpujob_api.gate import ENV_GATE_HOST, ENV_GATE_PORT, ENV_GATE_TOKEN_FILE, ENV_GATE_URL
from gpujob_operator.gate.process import GateOptions, run_until_signal
from gpujob_operator.gate.reporter import Destination
from gpujob_operator.telemetry.logs import configure_logs

EXIT_USAGE = 2


def options_of(environment: Mapping[str, str]) -> GateOptions:
    """Returns the options. Raises `ValueError` with the name of a missing or wrong variable."""
    for name in (ENV_GATE_URL, ENV_GATE_TOKEN_FILE, ENV_GATE_HOST, ENV_GATE_PORT):
        if not environment.get(name):
            raise ValueError(f"{name}: must be set; the operator sets it in the gate's pod")
    port = environment[ENV_GATE_PORT]
    if not port.isdecimal() or not 0 < int(port) < 65_536:
        raise ValueError(f"{ENV_GATE_PORT}: must be a port, 1 to 65535; got {port!r}")
    destination = Destination(environment[ENV_GATE_URL], Path(environment[ENV_GATE_TOKEN_FILE]))
    return GateOptions(environment[ENV_GATE_HOST], int(port), destination)


def main() -> int:
    try:
        options = options_of(os.environ)
    except ValueError as error:
        print(f"gpujob-gate: {error}", file=sys.stderr)
        return EXIT_USAGE
    configure_logs("json", "info")
    asyncio.run(run_until_signal(options))
    return 0


if __name__ == "__main__":
    sys.exit(main())
