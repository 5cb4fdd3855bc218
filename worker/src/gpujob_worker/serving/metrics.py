"""The server's metrics in Prometheus' text format."""

from collections.abc import Iterable, Mapping

from gpujob_api.serving import ServingReport


def metrics_text(report: ServingReport, responses: Mapping[int, int], in_progress: int) -> str:
    """Returns all series. `responses` counts the responses to inference requests by status."""
    lines: list[str] = []

    def series(name: str, kind: str, text: str, values: Iterable[tuple[str, float]]) -> None:
        full = f"gpujob_serving_{name}"
        lines.extend([f"# HELP {full} {text}", f"# TYPE {full} {kind}"])
        lines.extend(f"{full}{labels} {value:.12g}" for labels, value in values)

    counted = sorted(responses.items())
    values = [(f'{{code="{status}"}}', float(count)) for status, count in counted]
    series("responses_total", "counter", "Responses to inference requests.", values)
    gauges = {
        "ready": ("Whether requests are expected.", float(report.ready)),
        "parked": (
            "Whether the weights are in the memory of the host, and requests are refused.",
            float(report.parked_seconds is not None),
        ),
        "requests_in_progress": ("Requests that are not answered.", float(in_progress)),
        "requests_queued": ("Requests that are in no batch.", float(report.queued)),
        "requests_per_second": ("Of the last minute.", report.requests_per_second),
        "samples_per_second": ("Of the last minute.", report.samples_per_second),
        "busy_percent": ("Of the last minute, executing batches.", report.busy_percent),
        "batch_samples": ("Mean samples in a batch.", report.batch_samples),
        "within_objective_percent": (
            "Requests of the last minute within the latency objective.",
            report.within_objective_percent,
        ),
    }
    for name, (text, value) in gauges.items():
        if value is not None:
            series(name, "gauge", text, [("", value)])
    if report.latency is not None:
        found = report.latency
        times = (found.p50_milliseconds, found.p95_milliseconds, found.p99_milliseconds)
        quantiles = zip(("0.5", "0.95", "0.99"), times, strict=True)
        rows = [(f'{{quantile="{name}"}}', value / 1000) for name, value in quantiles]
        series("latency_seconds", "gauge", "From arrival to answer, of the last minute.", rows)
    return "\n".join(lines) + "\n"
