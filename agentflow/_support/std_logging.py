"""`log_to_std`: send the library's log to the standard `logging`."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from loguru import logger

from agentflow._support.logs import reset_to_default

if TYPE_CHECKING:
    from loguru import Message

_LEVELS = {5: "TRACE", 25: "SUCCESS"}
"""Levels of loguru for which the standard library has no name."""


class _Forwarding:
    """The active sink, which a second `log_to_std` replaces."""

    sink: int | None = None


def log_to_std(level: str | int = "DEBUG") -> Callable[[], None]:
    """Send the library's log to the standard `logging`, under the names of its modules (`agentflow.loop.emitting`).

    This enables the log. The standard loggers' levels and handlers apply as usual. Each record has the attributes
    `run_id`, `call_id`, `session_id` and `source` (`"%(run_id)s"`), which are `""` if they do not apply. If loguru is
    not configured, its default handler no longer writes agentflow's records to standard error, but still writes those of
    other packages.

    Args:
        level: The lowest level to forward; lines of an `EventLog` below it are not built. `"TRACE"` includes tracebacks.

    Returns:
        A function that stops the forwarding and restores the previous log.

    Raises:
        ValueError: Loguru has no such level.

    Example:
        >>> stop = log_to_std("WARNING")
        >>> stop()
    """
    # First, because it refuses an unknown level. As a function, `format` keeps loguru from appending the traceback,
    # which `_forward` passes on itself.
    sink = logger.add(_forward, level=level, format=lambda _: "{message}", filter="agentflow")
    _stop()
    try:
        logger.remove(0)  # loguru's default handler; if it is missing, the program has configured loguru
    except ValueError:
        pass
    else:
        # The same handler again, for all other packages.
        logger.add(sys.stderr, filter={"agentflow": False})
    for number, name in _LEVELS.items():
        if logging.getLevelName(number) != name:
            logging.addLevelName(number, name)
    _Forwarding.sink = sink
    logger.enable("agentflow")

    def end() -> None:
        if _Forwarding.sink == sink:  # otherwise a later `log_to_std` has replaced it
            _stop()
            reset_to_default()

    return end


def _stop() -> None:
    sink, _Forwarding.sink = _Forwarding.sink, None
    if sink is not None:
        logger.remove(sink)


def _forward(message: Message) -> None:
    entry: Any = message.record
    target = logging.getLogger(entry["name"])
    level: int = entry["level"].no
    if not target.isEnabledFor(level):
        return
    failed = entry["exception"]
    error = None if failed is None else (failed.type, failed.value, failed.traceback)
    extra = {key: value for key, value in entry["extra"].items() if key not in _RESERVED}
    record = target.makeRecord(
        entry["name"], level, entry["file"].path, entry["line"], entry["message"], (), error, entry["function"], extra
    )
    record.created, record.msecs = entry["time"].timestamp(), entry["time"].microsecond // 1000
    record.thread, record.threadName = entry["thread"].id, entry["thread"].name
    target.handle(record)


_RESERVED = frozenset({*vars(logging.makeLogRecord({})), "message", "asctime"})
"""The attributes that every record has; `makeRecord` refuses them."""
