"""Structured logs: one JSON object per line, with a constant message and the variable parts as
keys.

A constant message can be counted and searched for.
"""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from gpujob_api.visible import visible, visible_line

_KEYS = "gpujob_keys"


class Log:
    """A logger whose methods take a constant message and keyword values."""

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(name)

    def debug(self, message: str, **keys: object) -> None:
        self._write(logging.DEBUG, message, keys)

    def info(self, message: str, **keys: object) -> None:
        self._write(logging.INFO, message, keys)

    def warning(self, message: str, **keys: object) -> None:
        self._write(logging.WARNING, message, keys)

    def error(self, message: str, *, with_traceback: bool = False, **keys: object) -> None:
        self._write(logging.ERROR, message, keys, with_traceback)

    def _write(
        self, level: int, message: str, keys: dict[str, Any], with_traceback: bool = False
    ) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, message, exc_info=with_traceback, extra={_KEYS: keys})


class JsonFormatter(logging.Formatter):
    """Formats time, level, logger and message, then the keys."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(getattr(record, _KEYS, {}))
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str, separators=(",", ":"))


class TextFormatter(logging.Formatter):
    """Formats for people, one line each: 10:31:02 info gpujob_operator.loop: message key=value."""

    def format(self, record: logging.LogRecord) -> str:
        moment = datetime.fromtimestamp(record.created, UTC).strftime("%H:%M:%S.%f")[:-3]
        values = getattr(record, _KEYS, {}).items()
        keys = "".join(f" {key}={visible_line(str(value))}" for key, value in values)
        message = visible_line(record.getMessage())
        line = f"{moment} {record.levelname.lower():7} {record.name}: {message}{keys}"
        if not record.exc_info:
            return line
        return f"{line}\n{visible(self.formatException(record.exc_info))}"


def configure_logs(form: str = "json", level: str = "info") -> None:
    """Sends all logs to standard error. kopf and aiohttp log only warnings and errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if form == "text" else JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for quiet in ("kopf", "aiohttp.access", "asyncio"):
        logging.getLogger(quiet).setLevel(logging.WARNING)
    # kopf warns that it does not handle signals. The operator handles them by design.
    logging.getLogger("kopf._core.reactor.running").setLevel(logging.ERROR)
