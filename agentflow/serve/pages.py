"""The common parts of this package's pages: scripts, file types, and the content security policy."""

from __future__ import annotations

from pathlib import Path
from typing import Final

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
