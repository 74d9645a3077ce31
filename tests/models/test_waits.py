"""The waits that providers request, in all their forms."""

import pytest

from agentflow.models.waits import requested_wait

NOW = 1_760_000_000.0  # 2025-10-09T08:53:20Z


@pytest.mark.parametrize(
    ("headers", "message", "wait"),
    [
        ({}, "", None),
        ({"retry-after": "2"}, "", 2.0),
        ({"retry-after": "0.25"}, "", 0.25),
        ({"retry-after": "-1"}, "", 0.0),
        ({"retry-after": "soon"}, "", None),
        ({"retry-after": "Thu, 09 Oct 2025 08:53:50 GMT"}, "", 30.0),
        ({"retry-after": "Thu, 09 Oct 2025 08:00:00 GMT"}, "", 0.0),
        ({"retry-after": "2025-10-09T08:53:25Z"}, "", 5.0),
        ({"retry-after-ms": "1500", "retry-after": "9"}, "", 1.5),
        ({"x-ms-retry-after-ms": "20"}, "", 0.02),
        ({}, "Rate limit reached. Please try again in 41.724s. Visit us.", 41.724),
        ({}, "Please try again in 1m30s.", 90.0),
        ({}, "Please try again in 350ms", 0.35),
        ({}, "Please retry after 20 seconds.", 20.0),
        ({}, "try again in 2 minutes", 120.0),
        ({}, "Please try again later.", None),
        ({}, "we retry 3 times", None),
        ({}, '{"@type": "RetryInfo", "retryDelay": "37s"}', 37.0),
        ({"x-ratelimit-reset-requests": "6m0s"}, "", 360.0),
        ({"x-ratelimit-reset-requests": "12ms", "x-ratelimit-reset-tokens": "1h2m3.5s"}, "", 3723.5),
        ({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "100"}, "", None),
        ({"x-ratelimit-reset-tokens": "6m0s", "x-ratelimit-remaining-tokens": "0"}, "", 360.0),
        ({"x-ratelimit-reset-tokens": "-1"}, "", None),
        ({"anthropic-ratelimit-tokens-reset": "2025-10-09T08:53:30Z"}, "", 10.0),
        ({"retry-after": "1"}, "try again in 50s", 1.0),
    ],
)
def test_every_form_is_read(headers: dict[str, str], message: str, wait: float | None) -> None:
    """Numbers, fractions, dates, durations, milliseconds and prose; the most exact source counts."""
    assert requested_wait(headers, message, lambda: NOW) == pytest.approx(wait)
