"""A real headless Chromium for tests, driven through its DevTools protocol.

    async with browser() as chromium, chromium.page(width=390, dark=True) as page:
        await page.goto("http://127.0.0.1:8000/")
        await page.type("Hello")
        await page.until("document.body.textContent.includes('Hello')")

It is Debian's `chromium`, or what the environment variable CHROMIUM names. Without one the tests that need it are skipped,
and say so.
"""

from __future__ import annotations

import asyncio
import atexit
import base64
import itertools
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import cache
from threading import Thread
from typing import Any

import aiohttp
import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")
LIMIT = 60.0
"""Seconds that anything here may take."""

UNTIL = """new Promise((resolve, reject) => {
  const look = () => { try { return (CONDITION); } catch { return false; } };
  if (look()) return resolve(true);
  const watch = new MutationObserver(() => { if (look()) { watch.disconnect(); resolve(true); } });
  watch.observe(document, { subtree: true, childList: true, characterData: true, attributes: true });
})"""


def chromium_path() -> str:
    """Where it is; the test is skipped where there is none."""
    named = os.environ.get("CHROMIUM")
    for name in (named,) if named else NAMES:
        if found := shutil.which(name):
            return found
    pytest.skip(f"There is no Chromium here ({named or ', '.join(NAMES)}): apt-get install chromium.")


class Browser:
    """A running Chromium."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._ids = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Any]] = {}
        self.pages: dict[str, Page] = {}

    async def listen(self) -> None:
        """Hand out what it says, until it ends."""
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                answer = self._answers.pop(said["id"])
                if answer.done():
                    continue
                if "error" in said:
                    answer.set_exception(RuntimeError(f"{said['error']}"))
                else:
                    answer.set_result(said["result"])
            elif page := self.pages.get(said.get("sessionId", "")):
                page.told(said["method"], said["params"])

    async def send(self, method: str, session: str | None = None, /, **params: Any) -> Any:
        """Send a command, and wait for what it gives."""
        number = next(self._ids)
        answer = self._answers[number] = asyncio.get_running_loop().create_future()
        await self._socket.send_json(
            {"id": number, "method": method, "params": params, **({"sessionId": session} if session else {})}
        )
        async with asyncio.timeout(LIMIT):
            return await answer

    @asynccontextmanager
    async def page(self, *, width: int = 1200, height: int = 800, dark: bool = False) -> AsyncIterator[Page]:
        """A page with cookies of its own; `page.tab()` is another one with the same."""
        context = (await self.send("Target.createBrowserContext", disposeOnDetach=True))["browserContextId"]
        yield await self.tab(context, width, height, dark)
        await self.send("Target.disposeBrowserContext", browserContextId=context)

    async def tab(self, context: str, width: int, height: int, dark: bool) -> Page:
        """Open a page."""
        target = (await self.send("Target.createTarget", url="about:blank", browserContextId=context))["targetId"]
        session = (await self.send("Target.attachToTarget", targetId=target, flatten=True))["sessionId"]
        page = self.pages[session] = Page(self, session, target, (context, width, height, dark))
        for domain in ("Page", "Runtime", "Log"):
            await page.send(f"{domain}.enable")
        await page.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if width < 600 else 1,
            mobile=width < 600,
        )
        features = [
            {"name": "prefers-color-scheme", "value": "dark" if dark else "light"},
            {"name": "prefers-reduced-motion", "value": "reduce"},
        ]
        await page.send("Emulation.setEmulatedMedia", features=features)
        return page


class Page:
    """One page.

    Attributes:
        problems: What its console says of errors, exceptions, breaches of its security policy, and dialogs.
    """

    def __init__(self, chromium: Browser, session: str, target: str, made: tuple[str, int, int, bool]) -> None:
        self._browser = chromium
        self._session = session
        self._target = target
        self._made = made
        self._loaded = asyncio.Event()
        self.problems: list[str] = []

    def told(self, method: str, params: Any) -> None:
        """Record an occurrence."""
        match method:
            case "Page.loadEventFired":
                self._loaded.set()
            case "Runtime.exceptionThrown":
                self.problems.append(str(params["exceptionDetails"]))
            case "Log.entryAdded" if params["entry"]["level"] == "error":
                self.problems.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
            case "Page.javascriptDialogOpening":
                self.problems.append(f"dialog: {params['message']}")
            case _:
                pass

    async def send(self, method: str, /, **params: Any) -> Any:
        """Send a command to the page."""
        return await self._browser.send(method, self._session, **params)

    async def tab(self) -> Page:
        """Another tab: the same cookies."""
        return await self._browser.tab(*self._made)

    async def close(self) -> None:
        """Close the tab, as a person does."""
        await self._browser.send("Target.closeTarget", targetId=self._target)

    async def goto(self, url: str) -> None:
        """Open an address, and wait until it is loaded."""
        self._loaded.clear()
        await self.send("Page.navigate", url=url)
        await asyncio.wait_for(self._loaded.wait(), LIMIT)

    async def reload(self) -> None:
        """Load it again."""
        self._loaded.clear()
        await self.send("Page.reload")
        await asyncio.wait_for(self._loaded.wait(), LIMIT)

    async def js(self, expression: str) -> Any:
        """The value of an expression; a promise is waited for."""
        given = await self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        if "exceptionDetails" in given:
            raise AssertionError(given["exceptionDetails"])
        return given["result"].get("value")

    async def until(self, condition: str) -> None:
        """Wait until an expression is true; it is looked at whenever the document changes."""
        try:
            await self.js(UNTIL.replace("CONDITION", condition))
        except TimeoutError:
            raise AssertionError(f"never: {condition}\n{await self.js('document.body.innerText')}") from None

    async def type(self, text: str) -> None:
        """Type into what has the focus."""
        await self.send("Input.insertText", text=text)

    async def press(self, key: str) -> None:
        """Press a key: Enter, Escape, Tab, or Space."""
        code = {"Enter": 13, "Escape": 27, "Tab": 9, "Space": 32}[key]
        written = {"Enter": "\r", "Space": " "}.get(key)
        at = {"key": written if key == "Space" else key, "code": key, "windowsVirtualKeyCode": code}
        await self.send("Input.dispatchKeyEvent", type="keyDown", **at, **({"text": written} if written else {}))
        await self.send("Input.dispatchKeyEvent", type="keyUp", **at)

    async def click(self, selector: str) -> None:
        """Click on the middle of an element, with the mouse."""
        x, y = await self.js(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)}); e.scrollIntoView({{block: 'nearest'}});"
            "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]; })()"
        )
        for kind in ("mousePressed", "mouseReleased"):
            await self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    async def screenshot(self) -> bytes:
        """What it looks like, as PNG."""
        return base64.b64decode((await self.send("Page.captureScreenshot", format="png"))["data"])


@cache
def started(path: str) -> str:
    """Where the Chromium of all tests takes commands; it is started once, and ends with this process."""
    return _RUNNING.enter_context(_chromium(path))


_RUNNING = ExitStack()
atexit.register(_RUNNING.close)


@contextmanager
def _chromium(path: str) -> Iterator[str]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        options = [
            "--headless=new",
            "--disable-gpu",
            "--hide-scrollbars",
            "--no-first-run",
            "--disable-background-networking",
        ]
        if os.geteuid() == 0:
            options.append("--no-sandbox")
        with subprocess.Popen(
            [path, *options, "--remote-debugging-port=0", f"--user-data-dir={home}"], stderr=subprocess.PIPE
        ) as process:
            assert process.stderr is not None
            try:
                while b"DevTools listening on " not in (line := process.stderr.readline()):
                    assert line, "Chromium did not start"
                Thread(target=process.stderr.read, daemon=True).start()  # so that the pipe never fills
                yield line.split(b" on ")[1].decode().strip()
            finally:
                process.kill()


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """A connection to Chromium; the pages that are opened over it, and their cookies, are gone with it."""
    path = chromium_path()
    async with asyncio.timeout(LIMIT):
        address = await asyncio.to_thread(started, path)
    async with aiohttp.ClientSession() as client, client.ws_connect(address, max_msg_size=0) as socket:
        chromium = Browser(socket)
        listening = asyncio.create_task(chromium.listen())
        try:
            yield chromium
        finally:
            listening.cancel()
