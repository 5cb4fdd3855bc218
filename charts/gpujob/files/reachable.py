"""helm test: the operator is well, hears of every kind, acts, exports metrics, and refuses a report
without a token.

It is asked again for a while: it may just have been installed, and of several replicas those that
do not lead answer 503.
"""

import os
import time
import urllib.error
import urllib.request

SECONDS_MAX = float(os.environ.get("SECONDS_MAX", "60"))
PAUSE_SECONDS = 0.5


def answer(url: str, data: bytes | None = None) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, data=data, timeout=10) as found:  # noqa: S310
            return found.status, found.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode(errors="replace")
    except OSError as error:
        return 0, str(error)


def expect(what: str, url: str, wanted: tuple[int, ...], data: bytes | None = None) -> str:
    until = time.monotonic() + SECONDS_MAX
    code, text = answer(url, data)
    while code in (0, 503) and time.monotonic() < until:
        time.sleep(PAUSE_SECONDS)
        code, text = answer(url, data)
    if code not in wanted:
        raise SystemExit(f"{what}: {url} answered {code} {text}, not one of {wanted}")
    print(what, code)
    return text


expect("healthz", f"{os.environ['METRICS_URL']}/healthz", (200,))
expect("events of every kind", f"{os.environ['METRICS_URL']}/readyz/events", (200,))
expect("leader", f"{os.environ['METRICS_URL']}/readyz", (200,))
metrics = expect("metrics", f"{os.environ['METRICS_URL']}/metrics", (200,))
if "\ngpujob_" not in metrics:
    raise SystemExit("no gpujob_ metric is exported")
expect("report without a token", os.environ["REPORT_URL"], (401, 403), data=b"{}")
