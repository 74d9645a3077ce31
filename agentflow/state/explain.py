"""Convert database errors to a `StoreError` with advice and without any stored data."""

from __future__ import annotations

import re
from typing import NamedTuple

from sqlalchemy import URL, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from agentflow._support.shown import printable, without_password
from agentflow.errors import StoreError


class _Advice(NamedTuple):
    signs: tuple[str, ...]
    text: str
    retryable: bool = False


# The first row with a sign in the error applies, so specific signs precede general ones such as "connection".
_ADVICE = (
    _Advice(
        ("readonly database", "read-only transaction", "read only"),
        (
            "The database is read-only. Give the file and its folder write permission, or use another database. Stored "
            "data can still be loaded."
        ),
    ),
    _Advice(
        # SQLITE_IOERR_SHMSIZE: the WAL index could not grow.
        ("disk is full", "disk full", "no space left", "could not extend file", "sqlite_ioerr_shmsize"),
        (
            "The disk is full. Free space on the database's disk (or raise its size limit) and repeat the call. Stored "
            "data can still be loaded."
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
            "Another process held the database for too long. Repeat the call; if this happens often, give SqlStore a "
            "longer timeout=, or use PostgreSQL."
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
            "The file is damaged, or is not a SQLite database. `PRAGMA integrity_check` shows the damage: REINDEX rebuilds "
            "an index; otherwise restore a backup, save the output of `.recover` in the sqlite3 shell, or use another file."
        ),
    ),
    _Advice(
        ("disk i/o error",),
        (
            "The disk could not be read or written. Check that it has free space and repeat the call. If that does not help, "
            "the disk or its file system is failing: see the system's log."
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
            "The server's files are damaged. REINDEX DATABASE rebuilds indexes (pg_amcheck lists the damaged ones); "
            "otherwise restore a backup."
        ),
    ),
    _Advice(
        ("password", "role ", "permission denied", "authentication"),
        "The server rejected this user. Check user, password and rights in the URL.",
    ),
    _Advice(
        ("does not exist",),
        "Create the database first (createdb), or correct its name in the URL.",
    ),
    _Advice(
        ("no such table", "no such column", "has no column", "datatype mismatch"),
        "The tables were changed by hand. Restore a backup, or use another database.",
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
        "The server cannot be reached. Check that it is running, and the URL's host and port; then repeat the call.",
        retryable=True,
    ),
)

_UNKNOWN = _Advice((), "The database's own error is the cause of this one: error.__cause__.")
_QUOTED_TEXT = re.compile(r" with text '.*", re.DOTALL)
"""The part of SQLite's message that quotes undecodable text."""


def database_url(text: str, legal: str) -> URL:
    """Parse a database URL.

    Args:
        text: The URL as the user wrote it.
        legal: The accepted forms, for the error.

    Raises:
        StoreError: The text is not the URL of a database; the error does not show the password.
    """
    try:
        url = make_url(text)
    # the cause is not chained, since some exceptions quote the URL with its password
    except (ArgumentError, ValueError, TypeError):
        raise StoreError(f"{_masked(str(text))!r} is not a database URL. Use {legal}.") from None
    if url.get_backend_name() == "sqlite" and url.host:
        path = f"{url.host}/{url.database}" if url.database else url.host
        raise StoreError(
            f"{shown_url(url)!r} has two slashes, but a SQLite file needs three: 'sqlite:///{path}', or four for an absolute "
            f"path: 'sqlite:////{path}'."
        )
    if url.host is not None and "@" in url.host:
        raise StoreError(
            f"{shown_url(url)!r} contains an unescaped '@' in its password. Escape the password's special characters: "
            "urllib.parse.quote_plus(password)."
        )
    return url


def _masked(text: str) -> str:
    """Return an invalid URL, with any possible password masked."""
    scheme, mark, rest = text.partition("://") if "://" in text else ("", "", text)
    user, at, host = rest.rpartition("@")
    name, colon, _ = (user if at else rest).partition(":")
    if colon and (at or mark):
        rest = f"{name}:***{at}{host if at else ''}"
    return without_password(f"{scheme}{mark}{rest}")


def shown_url(url: URL) -> str:
    """Return a database URL without its password, even if the password is in the query."""
    return without_password(url.render_as_string(hide_password=True))


def driver_error(error: SQLAlchemyError) -> BaseException:
    """Return the driver's exception, if there is one, as the cause to show.

    SQLAlchemy's exception has the statement's values in its message, such as texts of a conversation, and a long
    traceback.
    """
    return error if not isinstance(error, DBAPIError) or error.orig is None else error.orig


def explain(error: SQLAlchemyError, where: str, doing: str) -> StoreError:
    """Build a `StoreError` from a database error.

    Args:
        error: SQLAlchemy's error.
        where: The database's URL, without its password.
        doing: The operation that failed.
    """
    broken = error if isinstance(error, DBAPIError) else None
    text = _QUOTED_TEXT.sub("", str(error if broken is None else broken.orig)).strip()
    first = without_password(printable(text.splitlines()[0])) if text else type(error).__name__
    # SQLite reports both a full disk and a damaged file as "disk I/O error"; the name of the error code differs.
    lower = f"{text} {getattr(broken and broken.orig, 'sqlite_errorname', '')}".lower()
    advice = next((row for row in _ADVICE if any(sign in lower for sign in row.signs)), _UNKNOWN)
    retryable = advice.retryable or (broken is not None and broken.connection_invalidated)
    return StoreError(f"{doing} failed on {where}: {first.rstrip('.')}. {advice.text}", retryable=retryable)
