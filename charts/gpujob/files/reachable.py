"""helm test: the operator answers, exports metrics and refuses a report without a token."""

import os
import urllib.error
import urllib.request

metrics_url = os.environ["METRICS_URL"]
report_url = os.environ["REPORT_URL"]

with urllib.request.urlopen(f"{metrics_url}/healthz", timeout=10) as answer:  # noqa: S310
    print("healthz", answer.status)

with urllib.request.urlopen(f"{metrics_url}/metrics", timeout=10) as answer:  # noqa: S310
    names = [line for line in answer.read().decode().splitlines() if line.startswith("gpujob_")]
    assert names, "no gpujob_ metric is exported"
    print("metrics", len(names))

try:
    urllib.request.urlopen(report_url, data=b"{}", timeout=10)  # noqa: S310
except urllib.error.HTTPError as error:
    assert error.code in (401, 403), f"a report without a token was answered {error.code}"
    print("reports are refused without a token:", error.code)
else:
    raise SystemExit("a report without a token was accepted")
