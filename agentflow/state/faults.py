"""What databases say when they cannot, told as a `StoreError` that says what to do."""

from __future__ import annotations

from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from agentflow.errors import StoreError

__all__ = ["explain"]

_ADVICE: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("readonly database", "read-only transaction", "read only"),
        (
            "The database can only be read. Give the file and its folder write permission, or name another database. What is "
            "stored can still be loaded."
        ),
    ),
    (
        ("disk is full", "disk full", "no space left", "could not extend file"),
        (
            "There is no room left. Free space on the database's disk (or raise its size limit) and repeat the call. What is "
            "stored can still be loaded."
        ),
    ),
    (
        ("unable to open database file",),
        "The folder must exist, and this process must be allowed to write in it.",
    ),
    (
        ("database is locked", "lock timeout", "could not obtain lock"),
        (
            "Another process held the database for too long. Repeat the call; if it happens often, give SqlStore a longer "
            "timeout=, or use PostgreSQL."
        ),
    ),
    (
        ("not a database", "malformed", "disk i/o error"),
        "The file is damaged, or is no SQLite database. Restore it from a backup, or name another file.",
    ),
    (
        ("password", "role ", "permission denied", "authentication"),
        "The server does not let this user in. Check user, password and rights in the URL.",
    ),
    (
        ("does not exist",),
        "Create the database first (createdb), or correct its name in the URL.",
    ),
    (
        ("no such table", "no such column", "has no column", "datatype mismatch"),
        "The tables were changed by hand. Restore the database from a backup, or name another one.",
    ),
    (
        ("refused", "connection", "timeout expired", "resolve", "translate host", "server closed", "network"),
        "The server cannot be reached. Check that it runs, and host and port in the URL; then repeat the call.",
    ),
)


def explain(error: SQLAlchemyError, where: str, doing: str) -> StoreError:
    """Make a `StoreError` of what the database said.

    Args:
        error: SQLAlchemy's error; it becomes the cause.
        where: The database's URL, without its password.
        doing: What was being done.
    """
    said = str(error.orig if isinstance(error, DBAPIError) else error).strip()
    first = said.splitlines()[0] if said else type(error).__name__
    lower = said.lower()
    advice = next(
        (advice for signs, advice in _ADVICE if any(sign in lower for sign in signs)),
        "The database's own error is the cause of this one.",
    )
    return StoreError(f"{doing} failed on {where}: {first.rstrip('.')}. {advice}")
