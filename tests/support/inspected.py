"""Recorded runs, an inspector that shows them, and a browser that looks at it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
from browser import Page, browser

from agentflow import Agent, Hook, HookEvent, ModelChunk, PostActing, ToolUseBlock, Usage, tool
from agentflow.plugins import Recorder
from agentflow.serve.inspector import Inspector
from agentflow.testing import ScriptedModel
from website.pages import AddDate, KeepFiles, redirect


@tool(type="read")
async def read_page(url: str) -> Any:
    """Read a page."""
    yield f"loading {url}"
    if "broken" in url:
        raise ValueError("404 Not Found")
    yield f"{url} says that bread is 2.25"


@tool
async def delete_file(path: str) -> str:
    """Delete a file."""
    return "gone"


class Shorten(Hook):
    """Changes a result."""

    def on_event(self, event: HookEvent) -> None:
        """Cut it."""
        if isinstance(event, PostActing) and "bread" in event.tool_result.text:
            event.tool_result = replace(event.tool_result, content="bread is 2.25 [cut]")


SCRIPT: list[Any] = [
    [
        ModelChunk("Let me "),
        ModelChunk("look. ", usage=Usage(input_tokens=120, output_tokens=30, cost=0.002, model_calls=1)),
        ToolUseBlock("t1", "read_page", {"url": "http://shop/a"}),
        ToolUseBlock("t2", "read_page", {"url": "https://shop/broken"}),
        ToolUseBlock("t3", "checker", {"message": "Is bread 2.25?"}),
    ],
    [ToolUseBlock("t4", "delete_file", {"path": "/srv/a"})],
    ["A bread ", "is 2.25."],
]


def clerk(*hooks: Any, script: Any = None) -> Agent:
    """An agent with hooks, tools and a sub-agent."""
    checker = Agent("checker", ScriptedModel(["Yes, it is."]), tools=[])
    model = ScriptedModel(SCRIPT if script is None else script)
    return Agent("clerk", model, tools=[read_page, delete_file, checker.as_tool()], system="Sell.", hooks=hooks)


async def record(folder: Path) -> None:
    """Two runs, of which one has a hook less."""
    for hooks in ([redirect, KeepFiles(), AddDate(), Shorten()], [redirect, KeepFiles(), AddDate()]):
        recorder = Recorder(folder)
        await clerk(*hooks, recorder).call("What is a bread?")
        recorder.close()


def lines_of(*messages: str) -> str:
    """A run log, by hand: a call whose model says some texts."""
    call = {"call": "c1", "run": "run_1", "session": "s", "agent": "ada", "time": 100.0}
    said: list[dict[str, Any]] = [
        {"kind": "log", "form": "agentflow.run-log", "version": 1, "writer": "w", "time": 100.0},
        {"kind": "call", **call},
    ]
    for number, text in enumerate(messages):
        time = 100.0 + number
        message = {"role": "assistant", "id": f"m{number}", "content": [{"type": "text", "text": text}]}
        at = {"call": "c1", "iteration": number + 1}
        said += [
            {"kind": "message", "ref": f"m{number}", "message": message},
            {
                "kind": "event",
                "type": "PreReasoning",
                "seq": 2 * number,
                "time": time,
                "fields": {"model": "m", "input_messages": {}},
                **at,
            },
            {
                "kind": "event",
                "type": "PostReasoning",
                "seq": 2 * number + 1,
                "time": time + 0.5,
                "fields": {"reasoning_result": f"m{number}"},
                **at,
            },
        ]
    said.append({"kind": "event", "type": "CallEnded", "call": "c1", "seq": 9999, "time": 200.0, "fields": {}})
    return "".join(f"{json.dumps(one)}\n" for one in said)


@asynccontextmanager
async def serving(*runs: Path, **how: Any) -> AsyncIterator[tuple[Inspector, str]]:
    """An inspector that serves, and its link."""
    inspector = Inspector(*runs, **how)
    async with inspector.serving() as link:
        yield inspector, link


@asynccontextmanager
async def opened(link: str, **how: Any) -> AsyncIterator[Page]:
    """The page in a browser."""
    async with browser() as chromium, chromium.page(**how) as page:
        await page.goto(link)
        await page.until("document.querySelector('main').dataset.ready")
        yield page
        assert page.problems == []


async def key(page: Page, *keys: str) -> None:
    """Press keys that write."""
    for one in keys:
        await page.send("Input.dispatchKeyEvent", type="keyDown", key=one, text=one if len(one) == 1 else "")
        await page.send("Input.dispatchKeyEvent", type="keyUp", key=one)
    await page.js("new Promise(requestAnimationFrame)")


async def first_run(page: Page) -> None:
    """Open the newest run, with the keyboard."""
    await page.js("document.querySelector('.runs a').focus()")
    await page.press("Enter")
    await page.until("document.querySelector('main').dataset.ready === 'run'")


@asynccontextmanager
async def client(link: str) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """HTTP without a browser, and without the token; where the page is."""
    async with aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http, asyncio.timeout(60):
        yield http, link.partition("?")[0]
