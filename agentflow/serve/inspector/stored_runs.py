"""Run logs by name, for commands: a file, or a store with a run after a `#`: `sqlite:///runs.db#run_1`."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agentflow import state
from agentflow._support.shown import without_password
from agentflow.errors import StoreError, UsageError
from agentflow.recording import RunLog, load
from agentflow.recording.keeping import load_from

HOW_TO_GET_ONE = (
    "A Recorder writes run logs; `agentflow export` makes one from a session or a durable run in a database."
)
_MAX_NAMED = 10


def is_store(name: str | Path) -> bool:
    """Return whether a name is a store's URL, not a path.

    Example:
        >>> is_store("sqlite:///runs.db"), is_store("runs/")
        (True, False)
    """
    return isinstance(name, str) and "://" in name


def open_named(name: str) -> tuple[state.SqlStore, str | None]:
    """Open a store for reading by its name; also return the run in the name.

    Args:
        name: A database's URL, optionally with a run after a `#`.

    Raises:
        StoreError: The database does not exist, or a package that it needs is not installed.
    """
    url, run_id = _parts(name)
    path = url.partition(":///")[2].partition("?")[0]
    if url.startswith("sqlite") and not (path and Path(path).is_file()):
        raise StoreError(f"There is no database {without_password(url)!r}.")
    try:
        return state.SqlStore(url), run_id or None
    except ModuleNotFoundError as error:
        raise StoreError(str(error)) from error


def nothing_in(name: str) -> StoreError:
    """Return the error for a store without run logs, or without the requested one.

    Args:
        name: A database's URL, optionally with a run after a `#`.
    """
    url, run_id = _parts(name)
    what = f"no run {run_id!r}" if run_id else "no run log"
    return StoreError(f"{without_password(url)} holds {what}. {HOW_TO_GET_ONE}")


def _parts(name: str) -> tuple[str, str]:
    """Split a name into the database's URL and the run."""
    url, mark, run_id = name.rpartition("#")
    return (name, "") if not mark or "@" in run_id else (url, run_id)  # with an @, the # is part of a password


def load_named(name: str | Path, run_id: str | None = None) -> RunLog:
    """Read a run log by its name; not callable while an event loop runs.

    Args:
        name: A file, or a store.
        run_id: The run. If it is None, a file is read as one log, and a store must hold exactly one run.

    Raises:
        UsageError: The store holds several runs, and no run is named.
        StoreError: The log cannot be read, or does not contain the run.
    """
    if isinstance(name, Path) or not is_store(name):
        log = load(name)
        return log if run_id is None else log.run(run_id)
    return asyncio.run(_loaded(name, run_id))


async def _loaded(name: str, run_id: str | None) -> RunLog:
    store, named = open_named(name)
    async with store:
        run = run_id or named
        if run is None:
            known = [log.run_id for log in await asyncio.wrap_future(store.logs())]
            if not known:
                raise nothing_in(name)
            if len(known) != 1:
                some = ", ".join(known[:_MAX_NAMED])
                raise UsageError(
                    f"{store.url} holds {len(known)} runs; name one after a #, such as '{store.url}#run_1'. "
                    f"The last written: {some}."
                )
            run = known[0]
        return await load_from(store, run)
