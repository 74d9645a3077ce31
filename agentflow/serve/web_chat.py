"""The web chat: one page that uses the plain routes, like any other client. The inspector's page shares some of its files.

Rules:

1. The files are public and contain no data. Everything else comes from routes that require the user.
2. Only these files may run, and the page connects to this server only; texts never become markup (`page/chat.js`).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Final

from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

SHARED: Final = Path(__file__).parent / "page"
"""The web chat, with the scripts that the inspector uses too."""
TYPES: Final = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
"""The types of the pages' files; the system's own table may lack or change them."""


def policy(script: str = "'self'", style: str = "'self'", images: str = "'self' data:", connect: str = "'self'") -> str:
    """Return a content security policy that allows only the given sources."""
    return (
        f"default-src 'none'; script-src {script}; style-src {style}; img-src {images}; connect-src {connect}; "
        "base-uri 'none'; form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    )


PAGE_HEADERS: Final = {
    "Content-Security-Policy": f"{policy()}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-cache",
}
"""The headers of a page's files."""


def web_chat() -> list[Route]:
    """Return the routes of the page's files."""
    files = {file.name: file for file in SHARED.iterdir() if file.suffix in TYPES}
    return [
        Route("/", partial(_send, files.pop("index.html"))),
        *[Route(f"/ui/{name}", partial(_send, file)) for name, file in files.items()],
    ]


async def _send(file: Path, request: Request) -> Response:
    return FileResponse(file, headers=PAGE_HEADERS, media_type=TYPES[file.suffix])
