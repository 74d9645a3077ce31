"""Refused requests: one exception for all routes, and its JSON form."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import JSONResponse, Response


class Refusal(Exception):  # noqa: N818 - a response, not a fault
    """A request is refused.

    Args:
        status: The HTTP status.
        code: A short code for programs.
        text: The reason, and the fix, for people.
        retry_after: Seconds after which the client may try again.
        headers: Further headers.
    """

    def __init__(
        self,
        status: int,
        code: str,
        text: str,
        *,
        retry_after: int | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(text)
        self.status = status
        self.code = code
        self.text = text
        self.headers = {**(headers or {}), **({} if retry_after is None else {"Retry-After": str(retry_after)})}

    def response(self) -> JSONResponse:
        """Return the response."""
        body = {"error": {"code": self.code, "message": self.text}}
        return JSONResponse(body, self.status, {"Cache-Control": "no-store", **self.headers})


async def refused(request: Request, error: Exception) -> Response:
    """Return the response to a refused request."""
    assert isinstance(error, Refusal)
    return error.response()
