"""What databases say when they cannot, told as a `StoreError` that says what to do, and shows nothing of what is stored."""

from __future__ import annotations

import re
from typing import NamedTuple

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from agentflow.errors import StoreError
from agentflow.ground.shown import printable, without_password

__all__ = ["database_url", "explain", "shown_url"]


class _Advice(NamedTuple):
    signs: tuple[str, ...]
    text: str
    retryable: bool = False


_ADVICE = (
    _Advice(
        ("readonly database", "read-only transaction", "read only"),
        (
            "The database can only be read. Give the file and its folder write permission, or name another database. What is "
            "stored can still be loaded."
        ),
    ),
    _Advice(
        ("disk is full", "disk full", "no space left", "could not extend file", "sqlite_ioerr_shmsize"),
        (
            "There is no room left. Free space on the database's disk (or raise its size limit) and repeat the call. What is "
            "stored can still be loaded."
        ),
        retryable=True,
    ),
    _Advice(
        ("unable to open database file",),
        "The folder must exist, and this process must be allowed to write in it.",
    ),
    _Advice(
        ("database is locked", "lock timeout", "could not obtain lock", "deadlock", "idle-in-transaction"),
        (
            "Another process held the database for too long. Repeat the call; if it happens often, give SqlStore a longer "
            "timeout=, or use PostgreSQL."
        ),
        retryable=True,
    ),
    _Advice(
        (
            "not a database",
            "malformed",
            "sqlite_ioerr_short_read",
            "sqlite_ioerr_corruptfs",
            "could not decode to utf-8",
        ),
        (
            "The file is damaged, or is no SQLite database. `PRAGMA integrity_check` says where: REINDEX rebuilds an index; "
            "else restore it from a backup, save what `.recover` of the sqlite3 shell finds, or name another file."
        ),
    ),
    _Advice(
        ("disk i/o error",),
        (
            "The disk could not be read or written. Check that it has room and repeat the call; if it has, the disk or its "
            "file system fails: the system's log says how."
        ),
        retryable=True,
    ),
    _Advice(
        (
            "invalid page in block",
            "could not read block",
            "unexpected zero page",
            "missing chunk number",
            "is not a btree",
            "index corrupted",
            "invalid memory alloc request",
        ),
        (
            "The server's files are damaged. REINDEX DATABASE rebuilds indexes (pg_amcheck says which are damaged); else "
            "restore the database from a backup."
        ),
    ),
    _Advice(
        ("password", "role ", "permission denied", "authentication"),
        "The server does not let this user in. Check user, password and rights in the URL.",
    ),
    _Advice(
        ("does not exist",),
        "Create the database first (createdb), or correct its name in the URL.",
    ),
    _Advice(
        ("no such table", "no such column", "has no column", "datatype mismatch"),
        "The tables were changed by hand. Restore the database from a backup, or name another one.",
    ),
    _Advice(
        (
            "refused",
            "connection",
            "timeout expired",
            "resolve",
            "translate host",
            "server closed",
            "database system is",
            "network",
        ),
        "The server cannot be reached. Check that it runs, and host and port in the URL; then repeat the call.",
        retryable=True,
    ),
)

_UNKNOWN = _Advice((), "The database's own error is the cause of this one.")
_STORED = re.compile(r" with text '.*", re.DOTALL)
"""Where SQLite shows the text that it cannot read."""


def database_url(text: str, legal: str) -> URL:
    """Read a database's URL.

    Args:
        text: What a user has written.
        legal: The forms that would be legal, for the error.

    Raises:
        StoreError: It is none; its password is not shown.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError, TypeError):  # none of them is chained: some show what they could not read
        raise StoreError(f"{_unreadable(str(text))!r} is no database URL. Legal are {legal}.") from None
    if url.get_backend_name() == "sqlite" and url.host:
        path = f"{url.host}/{url.database}" if url.database else url.host
        raise StoreError(
            f"{shown_url(url)!r} has two slashes, and a file of SQLite's has three: 'sqlite:///{path}', or four from the root "
            f"of the disk: 'sqlite:////{path}'."
        )
    if url.host is not None and "@" in url.host:
        raise StoreError(
            f"{shown_url(url)!r} has an @ too many, so its parts cannot be told apart. Write the password with its special "
            "characters escaped: urllib.parse.quote_plus(password)."
        )
    return url


def _unreadable(text: str) -> str:
    """What nobody can parse, without what may be a password in it."""
    scheme, mark, rest = text.partition("://") if "://" in text else ("", "", text)
    user, at, place = rest.rpartition("@")
    name, colon, _ = (user if at else rest).partition(":")
    if colon and (at or mark):
        rest = f"{name}:***{at}{place if at else ''}"
    return without_password(f"{scheme}{mark}{rest}")


def shown_url(url: URL) -> str:
    """A database's URL without its password, wherever in it that stands."""
    return without_password(url.render_as_string(hide_password=True))


def explain(error: SQLAlchemyError, where: str, doing: str) -> StoreError:
    """Make a `StoreError` of what the database said.

    Args:
        error: SQLAlchemy's error; it becomes the cause.
        where: The database's URL, without its password.
        doing: What was being done.
    """
    broken = error if isinstance(error, DBAPIError) else None
    said = _STORED.sub("", str(error if broken is None else broken.orig)).strip()
    first = without_password(printable(said.splitlines()[0])) if said else type(error).__name__
    # SQLite says "disk I/O error" of a full disk and of a damaged file; the name of its code tells them apart.
    lower = f"{said} {getattr(broken and broken.orig, 'sqlite_errorname', '')}".lower()
    advice = next((one for one in _ADVICE if any(sign in lower for sign in one.signs)), _UNKNOWN)
    retryable = advice.retryable or (broken is not None and broken.connection_invalidated)
    return StoreError(f"{doing} failed on {where}: {first.rstrip('.')}. {advice.text}", retryable=retryable)
