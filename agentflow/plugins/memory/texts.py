"""`TextMemory`: memories in a database, the base class of `SqliteMemory` and `PostgresMemory`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from agentflow.plugins._texts import C, Texts
from agentflow.vocabulary.ports.memory_bank import Remembered


class TextMemory(Texts[C]):
    """A `MemoryBank` in the table of a database."""

    _user: ClassVar[str]
    """The column of the user."""

    async def add(self, user: str, text: str, by: str, at: float) -> Remembered:
        """See `MemoryBank`."""
        insert = f"INSERT INTO NAME({self._user}, text, by, at) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING"

        def work(connection: C) -> Remembered:
            self._change(connection, insert, (user, text, by, at))
            return self._memories(connection, "AND m.text = ?", user, text)[0]

        return await self._run(work)

    async def search(self, user: str, query: str, limit: int) -> Sequence[Remembered]:
        """See `MemoryBank`."""
        if not (ids := await self._ranked(query, limit, f"m.{self._user} = ?", user)):
            return []
        condition = f"AND m.id IN ({', '.join('?' * len(ids))})"
        found = await self._run(lambda connection: self._memories(connection, condition, user, *ids))
        return sorted(found, key=lambda one: ids.index(int(one.id)))

    async def all(self, user: str) -> Sequence[Remembered]:
        """See `MemoryBank`."""
        return await self._run(lambda connection: self._memories(connection, "ORDER BY m.id", user))

    async def forget(self, user: str, id: str | None = None) -> int:  # noqa: A002
        """See `MemoryBank`."""
        if id is not None and not (id.isascii() and id.isdecimal() and len(id) < 19):
            return 0
        condition, parameters = ("", ()) if id is None else (" AND id = ?", (int(id),))
        sql = f"DELETE FROM NAME WHERE {self._user} = ?{condition}"
        return await self._run(lambda connection: self._change(connection, sql, (user, *parameters)))

    def _memories(self, connection: C, rest: str, *given: object) -> list[Remembered]:
        sql = f"SELECT m.id, m.{self._user}, m.text, m.by, m.at FROM NAME m WHERE m.{self._user} = ? {rest}"
        return [Remembered(str(id_), *values) for id_, *values in self._rows(connection, sql, *given)]
