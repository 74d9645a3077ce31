"""The stores of tasks: the last ones in memory, or all in a database that several processes share.

Rules:

1. In a database, the SDK's own tables and versions decide: of two processes that write a task, one wins. A process that
   reads another process's task gets the task's events from the database.
2. A task whose process died is completed when it is read, with the result from its run or session.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple, TypeVar

from agentflow._support.logs import log_failure
from agentflow.errors import UsageError
from agentflow.serve.a2a.push import PushAddresses
from agentflow.serve.a2a.sdk import (
    ArgumentError,
    AsyncEngine,
    DatabaseTaskEventStream,
    DBAPIError,
    ServerCallContext,
    SQLAlchemyError,
    VersionedDatabaseTaskStore,
    cluster,
    create_async_engine,
    make_url,
    tasks,
    types,
)
from agentflow.serve.limits import Limits

T = TypeVar("T")

WORKING: Final = (types.TaskState.TASK_STATE_SUBMITTED, types.TaskState.TASK_STATE_WORKING)
_DRIVERS: Final = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+psycopg"}
_POLL_SECONDS: Final = 0.2
_SQLITE_SECONDS: Final = 30.0  # the wait for the lock of another writer


class _TaskTable(VersionedDatabaseTaskStore):
    """The SDK's store. Its tables are created before the first access, and its failures stay in the server's log."""

    async def get(self, task_id: str, context: ServerCallContext) -> cluster.StoredTask | None:
        get = super().get
        return await self._run(lambda: get(task_id, context))

    async def save(
        self,
        task: types.Task,
        *,
        event: Any = None,
        prev: types.Task | None = None,
        prev_version: cluster.TaskVersion,
        context: ServerCallContext,
    ) -> cluster.TaskVersion:
        save = super().save
        return await self._run(lambda: save(task, event=event, prev=prev, prev_version=prev_version, context=context))

    async def list(self, params: types.ListTasksRequest, context: ServerCallContext) -> types.ListTasksResponse:
        page = super().list
        return await self._run(lambda: page(params, context))

    async def _run(self, work: Callable[[], Awaitable[T]]) -> T:
        try:
            try:
                await self.initialize()
            except DBAPIError:  # another process has just created the tables
                await self.initialize()
            return await work()
        except SQLAlchemyError as error:
            reference = secrets.token_hex(4)
            log_failure("ERROR", error, "the database of A2A tasks failed (reference {})", reference)
            raise types.InternalError(f"The tasks are not available now (reference {reference}).") from error


class TaskDatabase(NamedTuple):
    """The tasks in a database.

    Attributes:
        engine: The connections.
        store: The tasks.
        events: Their events, for other processes.
    """

    engine: AsyncEngine
    store: cluster.VersionedTaskStore
    events: cluster.TaskEventStream

    @staticmethod
    def open(url: str) -> TaskDatabase:
        """Open a database; the first request creates its tables.

        Raises:
            UsageError: It is not the URL of a database of SQLite or PostgreSQL, or its driver is not installed.
        """
        try:
            address = make_url(url)
            driver = _DRIVERS[address.get_backend_name()]
        except (ArgumentError, KeyError) as error:
            text = "A2A(tasks=...) takes a database such as 'sqlite:///chat.db' or 'postgresql+psycopg://user@host/db'."
            raise UsageError(text) from error
        arguments = {"timeout": _SQLITE_SECONDS} if driver == _DRIVERS["sqlite"] else {}
        try:
            engine = create_async_engine(address.set(drivername=driver), connect_args=arguments)
        except ModuleNotFoundError as error:
            text = f"A2A(tasks=...) needs {error.name}, which is not installed: pip install 'agentflow-hooks[a2a]'"
            raise UsageError(text) from error
        return TaskDatabase(
            engine,
            _TaskTable(engine),
            DatabaseTaskEventStream(engine, poll_interval_s=_POLL_SECONDS),
        )


class LastTasks(tasks.InMemoryTaskStore):
    """The last tasks, for their owners.

    Args:
        limits: The limits.
        addresses: The addresses for notifications, which are removed with their tasks.
    """

    def __init__(self, limits: Limits, addresses: PushAddresses) -> None:
        super().__init__()
        self._limits = limits
        self._addresses = addresses
        self._order: OrderedDict[str, tuple[ServerCallContext, bool]] = OrderedDict()

    async def save(self, task: types.Task, context: ServerCallContext) -> None:
        """Store a task, and remove the oldest ones that are not running."""
        await super().save(task, context)
        self._order[task.id] = (context, task.status.state in WORKING)
        self._order.move_to_end(task.id)
        excess = len(self._order) - self._limits.finished
        for id in [id for id, (_, working) in self._order.items() if not working][: max(excess, 0)]:  # noqa: A001
            owner, _ = self._order.pop(id)
            await self.delete(id, owner)
            await self._addresses.delete_info(id, owner)
