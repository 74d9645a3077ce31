"""Reads how long a provider asks to wait, from headers and messages in all known forms."""

import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from math import isfinite, nan

# `(?!s)`: the "m" of "12ms" is not minutes.
_DURATION = re.compile(r"(?:(\d+(?:\.\d+)?)h)?(?:(\d+(?:\.\d+)?)m(?!s))?(?:(\d+(?:\.\d+)?)s)?(?:(\d+(?:\.\d+)?)ms)?\Z")
# OpenAI's and Azure's messages: "Please try again in 6m0s", "retry after 20 seconds".
_IN_TEXT = re.compile(
    r"(?:try again|retry|wait)\w{0,8}(?:\s+(?:in|after|for))?\s+(?P<value>\d[\dhms.]*)"
    r"\s*(?P<unit>milliseconds?|seconds?|minutes?)?",
    re.IGNORECASE,
)
# Google's `RetryInfo`, in the JSON of the error.
_RETRY_DELAY = re.compile(r"retryDelay\W+(\d+(?:\.\d+)?)s")
_UNITS = {"milli": 0.001, "second": 1.0, "minute": 60.0}
# The headers of OpenAI and Anthropic: the reset of a limit, and what remains of it.
_RESETS = (
    ("x-ratelimit-reset-requests", "x-ratelimit-remaining-requests"),
    ("x-ratelimit-reset-tokens", "x-ratelimit-remaining-tokens"),
    ("anthropic-ratelimit-requests-reset", "anthropic-ratelimit-requests-remaining"),
    ("anthropic-ratelimit-tokens-reset", "anthropic-ratelimit-tokens-remaining"),
    ("anthropic-ratelimit-input-tokens-reset", "anthropic-ratelimit-input-tokens-remaining"),
    ("anthropic-ratelimit-output-tokens-reset", "anthropic-ratelimit-output-tokens-remaining"),
)


def requested_wait(headers: Mapping[str, str], message: str = "", now: Callable[[], float] = time.time) -> float | None:
    """Return the seconds that an error answer asks to wait, or None.

    The first of these decides: `retry-after-ms`, `retry-after`, the message, the resets of exhausted limits.

    Args:
        headers: The answer's headers; names in lower case.
        message: The error's text.
        now: Returns the seconds since the epoch; dates are relative to it.

    Example:
        >>> requested_wait({"retry-after": "2.5"})
        2.5
        >>> requested_wait({}, "Rate limit reached. Please try again in 41.7s.")
        41.7
    """
    for name in ("retry-after-ms", "x-ms-retry-after-ms"):
        if (milliseconds := _number(headers.get(name))) is not None:
            return max(0.0, milliseconds / 1000)
    if (wanted := headers.get("retry-after")) is not None and (wait := _moment(wanted, now)) is not None:
        return wait
    if (wait := _wait_in(message)) is not None:
        return wait
    return _reset(headers, now)


def _number(text: str | None) -> float | None:
    try:
        number = float(text) if text is not None else nan
    except ValueError:
        return None
    return number if isfinite(number) else None


def _duration(text: str) -> float | None:
    """Read a duration in Go's format: `12ms`, `1s`, `6m0s`, `1h2m3.5s`."""
    found = _DURATION.match(text.strip())
    if found is None or not text.strip():
        return None
    hours, minutes, seconds, milliseconds = (float(part) if part else 0.0 for part in found.groups())
    return hours * 3600 + minutes * 60 + seconds + milliseconds / 1000


def _moment(text: str, now: Callable[[], float]) -> float | None:
    """Read seconds, a duration, an HTTP date or an RFC 3339 date, as seconds from now."""
    if (number := _number(text)) is not None:
        return max(0.0, number)
    if (duration := _duration(text)) is not None:
        return duration
    from email.utils import parsedate_to_datetime  # importing it takes 4 ms, and it is rarely needed

    for parse in (parsedate_to_datetime, _rfc3339):
        try:
            date = parse(text)
        except ValueError:
            continue
        aware = date if date.tzinfo is not None else date.replace(tzinfo=UTC)
        return max(0.0, aware.timestamp() - now())
    return None


def _rfc3339(text: str) -> datetime:
    return datetime.fromisoformat(text.strip())


def _wait_in(message: str) -> float | None:
    if (delay := _RETRY_DELAY.search(message)) is not None:
        return float(delay[1])
    found = _IN_TEXT.search(message)
    if found is None:
        return None
    # The pattern may take the full stop of the sentence.
    value, unit = found["value"].rstrip("."), found["unit"]
    number = _number(value)
    if number is None:
        return _duration(value)
    # A bare number may be a count, such as "retry 3 times".
    if unit is None:
        return None
    return number * next(factor for name, factor in _UNITS.items() if unit.lower().startswith(name))


def _reset(headers: Mapping[str, str], now: Callable[[], float]) -> float | None:
    """Return the longest reset of the exhausted limits."""
    delays: list[float] = []
    for reset, remaining in _RESETS:
        left = _number(headers.get(remaining))
        if (when := headers.get(reset)) is None or (left is not None and left > 0):
            continue
        # Azure sends -1 if it does not know the time.
        if (wait := _moment(when, now)) is not None and not when.strip().startswith("-"):
            delays.append(wait)
    return max(delays, default=None)
