"""The page of `samples/web_chat` in a real Chromium: it streams, asks, stops, comes back, and takes every text for text."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from browser import Browser, Page, browser
from web_client import LIMIT, ROOT, SAMPLE, connected, events, served, text_of

from agentflow import Agent, ModelRequest, PreActing, Suspend, ToolUseBlock, on, tool
from agentflow.testing import ScriptedModel

from app import application  # isort: skip - the sample

pytestmark = pytest.mark.ci

if sys.platform == "win32":
    pytest.skip("needs signals", allow_module_level=True)

READY = "document.querySelector('#status').dataset.state === 'ready'"
ASKS = "document.activeElement.matches('.ask')"
TEXTS = "[...document.querySelectorAll('#log > li')].map(item => item.innerText)"


def said(text: str) -> str:
    """The condition that a text is shown."""
    return f"document.querySelector('#log').innerText.includes({json.dumps(text)})"


@asynccontextmanager
async def opened(app: Any, **how: Any) -> AsyncIterator[tuple[str, Page]]:
    """A page that shows an application."""
    async with browser() as chromium, served(app) as url, shown(chromium, url, **how) as page:
        yield url, page


@asynccontextmanager
async def shown(chromium: Browser, url: str, **how: Any) -> AsyncIterator[Page]:
    """A page that has loaded its history."""
    async with chromium.page(**how) as page:
        await page.goto(url)
        await page.until(READY)
        yield page


async def say(page: Page, text: str) -> None:
    """Type and send, with the keyboard."""
    await page.js("document.querySelector('#text').focus()")
    await page.type(text)
    await page.press("Enter")


async def test_words_stream_and_the_history_is_the_same_after_a_reload() -> None:
    """Text is shown as it arrives, tools as lines with their state; a reload shows the same from the history."""
    go = asyncio.Event()

    async def hold() -> None:
        await go.wait()

    @tool(type="read")
    async def look_up_order() -> str:
        return "found"

    model = ScriptedModel([["One ", hold, "moment.", ToolUseBlock("t1", "look_up_order")], "It is here."])
    async with opened(application(Agent("a", model, tools=[look_up_order]))) as (_, page):
        assert await page.js("!document.querySelector('#welcome').hidden && document.querySelector('#send').disabled")
        await say(page, "Where is it?")
        await page.until(said("One "))
        assert await page.js("document.querySelector('#status').textContent") == "Answering…"
        assert await page.js("document.querySelector('#log').ariaBusy") == "true"
        go.set()
        await page.until(f"{READY} && {said('It is here.')}")
        texts = await page.js(TEXTS)
        assert [text.split("\n") for text in texts] == [
            ["Where is it?"],
            ["One moment."],
            ["Looking up the order", "done"],
            ["It is here."],
        ]
        await page.reload()
        await page.until(f"{READY} && {said('It is here.')}")
        assert await page.js(TEXTS) == texts
        assert page.problems == []


@pytest.mark.parametrize("yes", [True, False])
async def test_a_question_is_answered_with_the_keyboard(yes: bool) -> None:
    """The question has the focus, even after a reload; the answer resumes the call."""
    ran: list[int] = []

    @tool
    async def refund(number: int) -> str:
        ran.append(number)
        return "done"

    @on(PreActing)
    def ask(event: PreActing) -> Suspend:
        return Suspend({"question": "Really?"})

    def brain(request: ModelRequest) -> Any:
        last = request.messages[-1]
        return (
            f"It is {last.tool_results[0].state}."
            if last.role == "tool"
            else ToolUseBlock("t1", "refund", {"number": 7})
        )

    async with opened(application(Agent("a", ScriptedModel(brain), tools=[refund], hooks=[ask]))) as (_, page):
        await say(page, "Refund it")
        await page.until(ASKS)
        await page.reload()
        await page.until(ASKS)
        assert await page.js("document.querySelector('#send').disabled")
        assert ran == []
        await page.press("Enter")  # one too many decides nothing
        for _ in range(1 if yes else 2):
            await page.press("Tab")
        await page.press("Enter")
        await page.until(f"{READY} && {said('It is success.' if yes else 'It is denied.')}")
        assert await page.js("document.querySelectorAll('.ask').length") == 0
        assert (ran, page.problems) == ([7] if yes else [], [])


@pytest.mark.parametrize("by", ["Escape", "mouse"])
async def test_an_answer_is_stopped(by: str) -> None:
    """Escape and the button end the call; its text stays, and the next message is answered."""
    model = ScriptedModel([["Once upon a time ", asyncio.Event().wait], "Yes."])
    async with opened(application(Agent("a", model))) as (_, page):
        await say(page, "A story")
        await page.until(said("Once upon a time"))
        await (page.press("Escape") if by == "Escape" else page.click("#stop"))
        await page.until(f"{READY} && {said('You stopped the answer.')}")
        await say(page, "Are you there?")
        await page.until(f"{READY} && {said('Yes.')}")
        assert await page.js(said("Once upon a time"))
        assert page.problems == []


NASTY = (
    "<script>window.broken = 1</script><img src=x onerror='window.broken = 2'><svg onload='window.broken = 3'>"
    '<a href="javascript:window.broken = 4">click</a> [click](javascript:window.broken=5) <style>body{display:none}</style>'
    "</div></li><iframe srcdoc='<script>parent.broken = 6</script>'></iframe>\u202egnp.exe\u202c \u200b\u200d\u2066\u2069 "
    '\u05e9\u05dc\u05d5\u05dd {{constructor}} \u0000\u001b[31m \u2028data: {"type":"end"}\n\ndata: {"type":"end"}\n\n'
)


async def test_every_text_is_text() -> None:
    """Markup, scripts, links, bidi overrides and forged events of a model, a tool's name, a question: shown, and inert."""

    @tool(type="read")
    async def look_up_order(number: str) -> str:
        return NASTY

    @on(PreActing)
    def ask(event: PreActing) -> Suspend:
        return Suspend({"question": f"Look up {event.tool_use.input.get('number', NASTY)}?"})

    calls = [ToolUseBlock("__proto__", "look_up_order", {"number": NASTY}), ToolUseBlock(NASTY, NASTY, {})]

    def brain(request: ModelRequest) -> Any:
        return [NASTY, *calls] if request.messages[-1].role == "user" else [*NASTY]

    agent = Agent("a", ScriptedModel(brain), tools=[look_up_order], hooks=[ask])
    inert = (
        "window.broken === undefined && !document.querySelector('#log :is(script, img, svg, a, style, iframe)')"
        " && getComputedStyle(document.body).display === 'grid'"
    )
    async with opened(application(agent)) as (_, page):
        await say(page, NASTY)
        await page.until(ASKS)
        for _ in range(2):
            assert await page.js(inert)
            # The model's words are what it said; a person who decides sees what could deceive them.
            assert await page.js("document.querySelector('.reply .bubble').textContent") == NASTY
            asked = await page.js("document.querySelector('.ask p').textContent")
            assert "<script>window.broken = 1</script>" in asked
            assert "\\u202egnp.exe\\u202c \\u200b" in asked
            assert "\u202e" not in asked
            await page.reload()
            await page.until(ASKS)
        await page.click(".ask .yes")
        await page.until(ASKS)  # about the other one
        await page.click(".ask .yes")
        await page.until(f"{READY} && document.querySelectorAll('.reply').length === 2")
        assert await page.js("[...document.querySelectorAll('.reply .bubble')].at(-1).textContent") == NASTY
        assert await page.js(inert)
        assert page.problems == []


async def test_nothing_may_run_that_is_not_ours() -> None:
    """If text became markup all the same, the policy of the page would refuse to make it, and to run it."""
    async with opened(application(Agent("a", ScriptedModel([])))) as (_, page):
        made = "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'made'; } catch { return 'refused'; } })()"
        assert await page.js(made) == "refused"
        handler = (
            "(() => { const item = document.createElement('p'); document.body.append(item);"
            "try { item.setAttribute('onclick', 'window.broken = 1'); item.click(); } catch {} return window.broken; })()"
        )
        assert await page.js(handler) is None
        outside = "new Promise((ended) => { const image = new Image(); image.onload = () => ended('loaded');"
        assert (
            await page.js(f"{outside} image.onerror = () => ended('refused'); image.src = '{OUTSIDE}'; }})")
            == "refused"
        )
        assert any("Content Security Policy" in problem for problem in page.problems)


OUTSIDE = "http://127.0.0.2:9/pixel.png"


async def test_two_tabs_and_a_closed_one() -> None:
    """A second tab reports the running call, keeps its input, and follows if the first tab is closed."""
    model = ScriptedModel([["Counting ", asyncio.Event().wait], "Two."])
    async with opened(application(Agent("a", model))) as (url, page):
        tab = await page.tab()
        await tab.goto(url)
        await tab.until(READY)
        await say(page, "Count")
        await page.until(said("Counting"))
        await say(tab, "Me too")
        await tab.until(said("This conversation continues in another tab."))
        assert await tab.js("document.querySelector('#text').value") == ""
        await page.close()
        await tab.until(f"{READY} && document.querySelector('#text').value === 'Me too'")
        assert await tab.js(f"{said('Count')} && !{said('Me too')}")
        await tab.press("Enter")
        await tab.until(f"{READY} && {said('Two.')}")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [320, 390, 1200])
async def test_it_fits(width: int, dark: bool) -> None:
    """Nothing is wider than a phone, even if words are long; contrast is at least 4.5 to 1, in light and dark."""

    @on(PreActing)
    def ask(event: PreActing) -> Suspend:
        return Suspend({"question": "Really? " + "x" * 200})

    @tool
    async def refund() -> str: ...

    model = ScriptedModel([["x" * 400, ToolUseBlock("t1", "refund")]])
    async with opened(
        application(Agent("a", model, tools=[refund], hooks=[ask])), width=width, height=700, dark=dark
    ) as (_, page):
        await say(page, "y" * 300)
        await page.until(ASKS)
        assert await page.js("document.documentElement.scrollWidth") <= width
        assert await page.js("document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth")
        assert await page.js("document.querySelector('#send').getBoundingClientRect().bottom") <= 700
        low = await page.js(CONTRAST)
        assert low == []
        assert page.problems == []


CONTRAST = """(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const rgb = (color) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c[3] === 255) return c; } return [255, 255, 255]; };
  return ['h1', '#status', '.user .bubble', '.reply .bubble', '.tool bdi', '.ask p', '.ask .yes', '.ask button:not(.yes)']
    .map((s) => { const e = document.querySelector(s); const [a, b] = [light(rgb(getComputedStyle(e).color)), light(ground(e))];
      return [s, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]; }).filter(([, ratio]) => ratio < 4.5);
})()"""


# ---- the sample as a user starts it


class Sample:
    """The sample as a process of its own, on a port that is free, or that it had before."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = 0

    @asynccontextmanager
    async def running(self, *options: str) -> AsyncIterator[asyncio.subprocess.Process]:
        """Start it."""
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "WEB_CHAT_PACE": "0.02"}
        command = [sys.executable, "-W", "error", str(SAMPLE / "app.py"), "--port", str(self.port), *options]
        process = await asyncio.create_subprocess_exec(
            *command, cwd=self.folder, env=environment, stderr=subprocess.PIPE
        )
        assert process.stderr is not None
        try:
            async with asyncio.timeout(LIMIT):
                while b"running on" not in (line := await process.stderr.readline()):
                    assert line, "the sample did not start"
            self.port = int(line.split(b"127.0.0.1:")[1].split()[0])
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            self.said = (await process.stderr.read()).decode()
            await process.wait()

    @property
    def url(self) -> str:
        """The address of the server."""
        return f"http://127.0.0.1:{self.port}"


async def test_the_sample_over_http(tmp_path: Path) -> None:
    """Started as its README says: orders, a refund that is asked for, and a refusal; Ctrl-C ends it without a trace."""
    sample = Sample(tmp_path)
    async with sample.running() as process, connected(sample.url) as client:
        for name, kind in (
            ("", "text/html"),
            ("page.js", "javascript"),
            ("page.css", "text/css"),
            ("icon.svg", "image/svg"),
        ):
            async with client.http.get(f"{sample.url}/{name}") as response:
                assert (response.status, kind in response.headers["Content-Type"]) == (200, True)
        async with client.http.get(f"{sample.url}/%2e%2e/app.py") as response:
            assert response.status == 404
        first = await client.chat("Where is order 1043?")
        assert text_of(first) == "One moment, I look it up.“Invisible Cities” is on its way, due tomorrow."
        [question] = (await client.chat("Please refund order 1042"))[-1]["questions"]
        assert question["question"] == "Refund 14.50 € for order 1042, “The Sea, the Sea”?"
        done = await client.call("resume", {"decisions": {question["id"]: True}})
        assert done[-1]["text"].startswith("Done: 14.50 €")
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.wait(), LIMIT)
    assert "Traceback" not in sample.said


async def test_the_server_ends_in_mid_call_and_the_page_goes_on(tmp_path: Path) -> None:
    """Ctrl-C while a tool runs: the page waits for the next process, in which the answer continues."""
    sample = Sample(tmp_path)
    store = ("--store", f"sqlite:///{tmp_path / 'chat.db'}", "--limit", "30")
    async with browser() as chromium, sample.running(*store) as process, chromium.page() as page:
        await page.goto(sample.url)
        await page.until(READY)
        await say(page, "Where is order 1043?")
        await page.until("document.querySelector('.tool[data-state=running]')")
        process.send_signal(signal.SIGINT)
        await asyncio.wait_for(process.wait(), LIMIT)
        async with sample.running(*store):
            await page.until(f"{READY} && {said('is on its way, due tomorrow.')}")
            assert len(await page.js(TEXTS)) == 4


async def test_a_client_that_is_killed(tmp_path: Path) -> None:
    """kill -9 of a client in mid-stream: its call is interrupted, its conversation continues."""
    sample = Sample(tmp_path)
    async with sample.running(), connected(sample.url) as client:
        [cookie] = client.http.cookie_jar
        code = (
            "import sys, urllib.request as r\n"
            f"q = r.Request('{sample.url}/chat', b'{{\"text\": \"Count\"}}', {{'Cookie': '{cookie.key}={cookie.value}',"
            "'Content-Type': 'application/json'}); f = r.urlopen(q)\n"
            "print(f.readline(), flush=True); sys.stdin.read()"
        )
        killed = await asyncio.create_subprocess_exec(
            sys.executable, "-c", code, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert killed.stdout is not None
        assert b'"1, "' in await killed.stdout.readline()
        assert (await client.history())["running"]
        killed.kill()
        await killed.wait()
        while (stored := await client.history())["running"]:
            pass
        assert stored["messages"][-1]["text"].startswith("1, ")
        assert (await client.chat("Where is order 1043?"))[-1]["outcome"] == "completed"


async def test_ctrl_c_while_an_answer_does_not_end(tmp_path: Path) -> None:
    """A call that exceeds the limit is cancelled; the client is informed, and the process ends."""
    sample = Sample(tmp_path)
    async with sample.running("--limit", "0.2") as process, connected(sample.url) as client:
        async with client.post("chat", {"text": "Count"}) as response:
            stream = events(response)
            await anext(stream)
            process.send_signal(signal.SIGINT)
            assert [event async for event in stream][-1] == {"type": "end", "outcome": "shutdown"}
        await asyncio.wait_for(process.wait(), LIMIT)
    assert "Traceback" not in sample.said
