"""What was logged."""

from __future__ import annotations

import asyncio


class Lines(list[str]):
    """Lines, and news of them for the test's event loop."""

    def __init__(self) -> None:
        super().__init__()
        self._news = asyncio.Event()

    def take(self, line: str) -> None:
        """A line was logged."""
        self.append(line)
        self._news.set()

    async def until(self, text: str) -> None:
        """Wait for a line with a text."""
        while not any(text in line for line in self):
            self._news.clear()
            await asyncio.wait_for(self._news.wait(), 20)
