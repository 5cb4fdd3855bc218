"""Times as Kubernetes writes them."""

from datetime import datetime, timezone

UTC = timezone.utc  # noqa: UP017 - the worker reads nouns under Python 3.9 too


def format_time(moment: datetime) -> str:
    """RFC 3339 in UTC with microseconds only where there are any, as Kubernetes writes it."""
    in_utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    return in_utc.isoformat().replace("+00:00", "Z")


def parse_time(text: str) -> datetime:
    """Reads an ISO 8601 time, in UTC where it names no zone. Raises `ValueError`."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is UTC:
        return moment
    try:
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    except OverflowError:
        raise ValueError(f"{text} is beyond the calendar in UTC") from None
