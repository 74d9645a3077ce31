"""`check_memory`: a conformance suite for memory banks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Literal, TypeAlias, get_args

from agentflow._support.ids import new_id
from agentflow.errors import StoreError
from agentflow.testing.findings import ConformanceReport
from agentflow.testing.suite import Suite, expect_equal, no_loop_here
from agentflow.vocabulary.ports.memory_bank import MemoryBank

MemoryFlaw: TypeAlias = Literal[
    "content", "separation", "search", "forgetting", "duplicates", "concurrency", "errors", "hang"
]
"""The kinds of flaws."""

# Texts and queries that break a bank which builds SQL or full-text queries by joining strings.
_STRANGE = ("tea\nand \"milk\" AND NOT 'x' -- ; *", "Grüße, 茶, ☕", "%_[a-z]*", " spaces around ", "x" * 5_000)
QUERIES = ("", '"', "AND OR NOT", "tea* NEAR/2", "a:b", "') --", "\x00", "user = 'other'", "☕", "x" * 100_000)


class MemoryReport(ConformanceReport[MemoryFlaw]):
    """The results of `check_memory` for one bank."""

    __slots__ = ()


def check_memory(bank: MemoryBank | Callable[[], MemoryBank], *, timeout: float = 10.0) -> MemoryReport:
    """Check a memory bank, and report its flaws. The check uses its own users, and deletes their memories.

    Args:
        bank: The bank, or a function that opens it.
        timeout: Seconds after which a check counts as hanging.

    Returns:
        The report; `report.assert_clean()` raises an error with its text.

    Raises:
        UsageError: An event loop runs in this thread (use `check_memory_async` there).

    Example:
        >>> from agentflow.plugins.memory import SqliteMemory
        >>> check_memory(SqliteMemory(":memory:")).clean
        True
    """
    no_loop_here("check_memory")
    return _MemoryTrials(bank() if callable(bank) else bank, timeout).report()


async def check_memory_async(bank: MemoryBank | Callable[[], MemoryBank], *, timeout: float = 10.0) -> MemoryReport:
    """Run `check_memory` in a thread, for use in coroutines.

    Args:
        bank: As in `check_memory`.
        timeout: As in `check_memory`.
    """
    return await asyncio.to_thread(check_memory, bank, timeout=timeout)


class _MemoryTrials(Suite[MemoryFlaw]):
    def __init__(self, bank: MemoryBank, timeout: float) -> None:
        super().__init__(get_args(MemoryFlaw), StoreError, timeout)
        self.bank = bank

    def report(self) -> MemoryReport:
        """Run the whole suite."""
        checks: dict[MemoryFlaw, Callable[[str, str], Awaitable[None]]] = {
            "content": self._content,
            "separation": self._separation,
            "search": self._search,
            "forgetting": self._forgetting,
            "duplicates": self._duplicates,
            "concurrency": self._concurrency,
        }
        with asyncio.Runner() as runner:
            for kind, check in checks.items():
                users = new_id("user_"), new_id("user_")
                needs: tuple[MemoryFlaw, ...] = () if kind == "content" else ("content",)
                self.run(runner, kind, lambda check=check, users=users: check(*users), needs)
                runner.run(self._clean(*users))
        return MemoryReport(type(self.bank).__name__, self.findings.sorted(), self.checks, self.notes)

    async def _clean(self, *users: str) -> None:
        for user in users:
            try:
                await self.patiently(self.bank.forget(user))
            except Exception:  # a check has already reported the broken bank
                continue

    async def _texts(self, user: str) -> list[str]:
        return [memory.text for memory in await self.bank.all(user)]

    async def _content(self, ada: str, bob: str) -> None:
        memories = [await self.bank.add(ada, text, "agent", 1.5) for text in _STRANGE]
        found = [(memory.user, memory.text, memory.by, memory.at) for memory in memories]
        expect_equal("content", "changes a memory", found, [(ada, text, "agent", 1.5) for text in _STRANGE])
        expect_equal(
            "content", "does not return all memories, the oldest first", list(await self.bank.all(ada)), memories
        )
        expect_equal("content", "gives two memories one id", len({memory.id for memory in memories}), len(memories))

    async def _separation(self, ada: str, bob: str) -> None:
        ada_entry = await self.bank.add(ada, "Ada likes tea.", "agent", 1.0)
        await self.bank.add(bob, "Bob likes tea.", "agent", 1.0)
        for user in (f"{ada}%", ada.upper(), f"{ada} ", "", "%", f"{ada}' OR '1'='1"):
            expect_equal("separation", f"returns memories to another user ({user!r})", await self._texts(user), [])
        for query in ("tea", *QUERIES, ada, f'tea" OR user:"{ada}'):
            for user in (ada, bob):
                found = {memory.user for memory in await self.bank.search(user, query, 10)}
                expect_equal(
                    "separation", f"finds memories of another user ({query[:40]!r})", found - {user}, set[str]()
                )
        expect_equal("separation", "deletes a memory of another user", await self.bank.forget(bob, ada_entry.id), 0)
        await self.bank.forget(bob)
        expect_equal("separation", "deletes the memories of another user", await self._texts(ada), ["Ada likes tea."])

    async def _search(self, ada: str, bob: str) -> None:
        for text in ("She likes green tea.", "Her cat is called Tom.", "She lives in Rome."):
            await self.bank.add(ada, text, "agent", 1.0)
        found = [memory.text for memory in await self.bank.search(ada, "What is the name of her cat?", 1)]
        expect_equal("search", "does not find the best memory first", found, ["Her cat is called Tom."])
        expect_equal("search", "ignores limit=0", list(await self.bank.search(ada, "tea", 0)), [])
        for query in QUERIES:
            await self.bank.search(ada, query, 5)

    async def _forgetting(self, ada: str, bob: str) -> None:
        one, _ = [await self.bank.add(ada, text, "agent", 1.0) for text in ("one tea", "two teas")]
        expect_equal(
            "forgetting", "returns the wrong number of deleted memories", await self.bank.forget(ada, one.id), 1
        )
        expect_equal("forgetting", "counts a deleted memory again", await self.bank.forget(ada, one.id), 0)
        for unknown in ("", "x", "-1", "1 OR 1=1", "9" * 40, "٣"):
            expect_equal("forgetting", f"deletes an unknown id ({unknown!r})", await self.bank.forget(ada, unknown), 0)
        found = [memory.text for memory in await self.bank.search(ada, "one tea", 5)]
        expect_equal("forgetting", "still finds a deleted memory", found, ["two teas"])
        expect_equal("forgetting", "returns the wrong number of all deleted memories", await self.bank.forget(ada), 1)
        expect_equal("forgetting", "does not forget all", await self._texts(ada), [])

    async def _duplicates(self, ada: str, bob: str) -> None:
        first = await self.bank.add(ada, "the same", "agent", 1.0)
        again = await self.bank.add(ada, "the same", "another", 2.0)
        other = await self.bank.add(bob, "the same", "agent", 1.0)
        expect_equal(
            "duplicates", "stores a text of a user twice", (again, await self._texts(ada)), (first, ["the same"])
        )
        expect_equal("duplicates", "shares a text between users", other.user, bob)

    async def _concurrency(self, ada: str, bob: str) -> None:
        await asyncio.gather(*[self.bank.add(ada, f"fact {n % 10}", "agent", 1.0) for n in range(40)])
        expect_equal(
            "concurrency", "loses or repeats memories", sorted(await self._texts(ada)), [f"fact {n}" for n in range(10)]
        )
