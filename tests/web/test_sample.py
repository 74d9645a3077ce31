"""`samples/web_chat` as a user starts it, and the recipe's page, word for word: a restart in mid-call, approvals, Ctrl-C."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from browser import browser
from web_client import LIMIT, ROOT

pytestmark = pytest.mark.ci

if sys.platform == "win32":
    pytest.skip("needs signals", allow_module_level=True)

READY = "document.querySelector('#status').dataset.state === 'ready'"
TEXTS = "[...document.querySelectorAll('#log > li')].map(item => item.innerText.trim().replace(/\\n+/g, '\\n'))"
PAGE = (ROOT / "docs" / "cookbook" / "web.md").read_text("utf-8")


class Started:
    """A program that serves, on a port that is free, or that it had before."""

    def __init__(self, folder: Path, *command: str) -> None:
        self.folder = folder
        self.command = command
        self.port = 0
        self.log = ""

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://127.0.0.1:{self.port}/"

    @asynccontextmanager
    async def running(self, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """Start it, and stop it with Ctrl-C."""
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}", "WEB_CHAT_PACE": "0.02", "PYTHONUNBUFFERED": "1"}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-W", "error", *self.command, "--port", str(self.port), *options),
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert process.stdout is not None
        try:
            async with asyncio.timeout(LIMIT):
                while not (found := re.search(rb"http://127\.0\.0\.1:(\d+)", line := await process.stdout.readline())):
                    assert line, "it did not start"
            self.port = int(found[1])
            yield process
        finally:
            if process.returncode is None:
                process.send_signal(signal.SIGINT)
            self.log += (await asyncio.wait_for(process.stdout.read(), LIMIT)).decode()
            await asyncio.wait_for(process.wait(), LIMIT)


async def test_a_restart_in_mid_call(tmp_path: Path) -> None:
    """Ctrl-C while a tool runs: the page waits for the next process, in which the answer continues."""
    sample = Started(tmp_path, str(ROOT / "samples" / "web_chat" / "app.py"))
    store = ("--store", f"sqlite:///{tmp_path / 'chat.db'}")
    async with browser() as chromium, chromium.page() as page:
        async with sample.running(*store):
            await page.goto(sample.url)
            await page.until(READY)
            await page.type("Where is order 1043?")
            await page.press("Enter")
            await page.until("document.querySelector('.tool[data-state=running]')")
        async with sample.running(*store):
            await page.until(f"{READY} && document.body.innerText.includes('is on its way, due tomorrow.')")
            assert await page.js(TEXTS) == [
                "Where is order 1043?",
                "One moment, I look it up.",
                "Looking up the order\ndone",
                "“Invisible Cities” is on its way, due tomorrow.",
            ]
            await page.js("document.querySelector('#new').click()")
            await page.type("Please refund order 1042")
            await page.press("Enter")
            await page.until("document.activeElement.matches('.ask')")
            assert await page.js("document.querySelector('.question').innerText") == (
                "Refund 14.50 € for order 1042, “The Sea, the Sea”?"
            )
            await page.click(".ask .main")
            await page.until(f"{READY} && document.body.innerText.includes('Done: 14.50 €')")
    assert "Traceback" not in sample.log


async def test_the_recipe(tmp_path: Path) -> None:
    """The page's file under the page's command shows the question and, after a yes, the reply."""
    (tmp_path / "letters.py").write_text(re.findall(r"^```py\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0], "utf-8")
    [arguments] = re.findall(r"^\$ agentflow (.*)$", PAGE, re.MULTILINE)
    recipe = Started(tmp_path, "-m", "agentflow", *arguments.split())
    async with recipe.running(), browser() as chromium, chromium.page() as page:
        await page.goto(recipe.url)
        await page.until(f"{READY} && document.body.innerText.includes('I write letters.')")
        await page.type("Write to Ann")
        await page.press("Enter")
        await page.until("document.activeElement.matches('.ask')")
        await page.click(".ask .main")
        await page.until(f"{READY} && document.querySelector('.text strong')?.innerText === 'on its way'")
        assert page.problems == []
    assert "Traceback" not in recipe.log
