"""Log records as JSON, a line each: with the request, the trace and the caller that the task works for."""

import json
import logging
from datetime import UTC, datetime

from realtime_service.telemetry import scope


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
            **scope.ids(),
            # A call gives them as `extra={"fields": …}`.
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False, default=str)


def install(log_format: str) -> None:
    """Let the handlers of this process write so. `log_format`: of the settings."""
    if log_format == "json":
        for handler in logging.getLogger().handlers:
            handler.setFormatter(JsonFormatter())
