"""Pictures of the inspector: two recorded runs in Chromium. `python -m website.pages` writes `docs/screens/inspector-*.png`.

The pictures contain times, so no test compares them: draw them again when the page has changed, and look at them. The tests of
the inspector use the hooks.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncIterator
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from agentflow import (
    Agent,
    Deny,
    Hook,
    HookEvent,
    ModelChunk,
    Msg,
    PostActing,
    PreActing,
    PreReasoning,
    ToolUseBlock,
    Usage,
    on,
    tool,
)
from agentflow.plugins import Breakpoint, Recorder
from agentflow.serve.inspector import Inspector
from agentflow.testing import Case, ScriptedModel
from agentflow.testing.evaluation import Dataset

ROOT: Final = Path(__file__).parents[1]
FOLDER: Final = ROOT / "docs" / "screens"
QUESTION: Final = "What are two apples and a loaf of bread? Tidy up afterwards."
READY: Final = "document.querySelector('main').dataset.ready === '{}'"


@tool(type="research")
async def search(query: str) -> AsyncIterator[str]:
    """Search the catalogue."""
    for page in range(5):
        await asyncio.sleep(0.055)
        yield f"page {page}: 12 results for {query}\n"


@tool(type="read")
async def read_page(url: str) -> str:
    """Read a page."""
    await asyncio.sleep(0.11)
    if "broken" in url:
        raise ValueError("404 Not Found")
    return f"The page at {url} says that bread costs 2.25 and apples 0.40 each.\n" * 8


@tool
async def delete_file(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


@on(PreActing, priority=20)
def redirect(event: PreActing) -> None:
    """Replace http by https."""
    use = event.tool_use
    if str(use.input.get("url", "")).startswith("http:"):
        event.tool_use = use.replace(input={"url": str(use.input["url"]).replace("http:", "https:")})


class KeepFiles(Hook):
    """Refuse to delete files."""

    guard = True

    def on_event(self, event: HookEvent) -> Deny | None:
        return Deny("files are kept") if isinstance(event, PreActing) and event.tool_use.name == "delete_file" else None


class AddDate(Hook):
    """Add the date to the request."""

    def on_event(self, event: HookEvent) -> None:
        if isinstance(event, PreReasoning):
            event.input_messages = (*event.input_messages, Msg.user("Today is Sunday."))


class Shorten(Hook):
    """Truncate long results."""

    def on_event(self, event: HookEvent) -> None:
        if isinstance(event, PostActing) and len(event.tool_result.text) > 200:
            event.tool_result = replace(event.tool_result, content=f"{event.tool_result.text[:160]} [cut]")


def reply_script(text: str, tokens: int, *calls: ToolUseBlock) -> list[Any]:
    """Return a script of a reply in chunks."""

    async def a_moment() -> None:
        await asyncio.sleep(0.018)

    words = [part for word in text.split(" ") for part in (a_moment, ModelChunk(f"{word} "))]
    usage = Usage(input_tokens=tokens, output_tokens=len(words), cost=tokens * 2.5e-6, model_calls=1)
    return [*words, *calls, ModelChunk(usage=usage)]


def use(number: int, name: str, **arguments: str) -> ToolUseBlock:
    """Return a tool call."""
    return ToolUseBlock(f"t{number}", name, arguments)


def clerk(*hooks: Hook, deletes: bool = True) -> Agent:
    """Create an agent with hooks, tools, a sub-agent and scripted models."""
    checks = "Let me look at both prices and compare them with what I know."
    prices = use(7, "read_page", url="https://prices.example/a")
    checker = Agent(
        "checker",
        ScriptedModel(
            [reply_script(checks, 710, prices), reply_script("Both are right.", 900)], name="openai/gpt-5-mini"
        ),
        description="Checks prices.",
        tools=[read_page],
    )
    finds = [use(1, "search", query="bread"), use(2, "search", query="apples")]
    finds.append(use(3, "read_page", url="http://shop.example/a"))
    reads = [use(4, "read_page", url="https://shop.example/broken")]
    reads.append(use(5, "checker", message="Are bread 2.25 and apples 0.40?"))
    tidies = reply_script("They are right. I tidy up.", 2300, use(6, "delete_file", path="/srv/basket"))
    script = [
        reply_script(
            "I will look for the prices of bread and of apples in the catalogue and read a page.", 1200, *finds
        ),
        reply_script("The catalogue has both. One page is missing, so I have the prices checked.", 1900, *reads),
        *([tidies] if deletes else []),
        reply_script("Two apples are 0.80 and a loaf of bread is 2.25: that is 3.05 in all.", 2600),
    ]
    return Agent(
        "clerk",
        ScriptedModel(script, name="openai/gpt-5"),
        tools=[search, read_page, delete_file, checker.as_tool()],
        system="You sell groceries.",
        hooks=list(hooks),
    )


async def record(folder: Path) -> None:
    """Record two runs; the second has fewer hooks, and deletes nothing."""
    for hooks, deletes in (([redirect, KeepFiles(), AddDate(), Shorten()], True), ([redirect, AddDate()], False)):
        recorder = Recorder(folder)
        await clerk(*hooks, recorder, deletes=deletes).call(QUESTION)
        recorder.close()


async def evaluate(folder: Path) -> None:
    """Save two evaluations; the second is worse in one case."""
    for number, answers in enumerate(("Send it back.", "I do not know.")):
        replies = [*["We open at nine."] * 3, "Send it back.", answers, "Send it back."]
        model = ScriptedModel(list(replies))
        agent = Agent("clerk", model, hooks=[recorder := Recorder(folder)])
        cases = [Case("When do you open?", name="hours"), Case("It arrived damaged.", "Send it back.", name="damaged")]
        report = await Dataset("refunds", cases, task=agent).evaluate(repeats=3, concurrency=1)
        recorder.close()
        report.save(folder / f"{number}.json")


async def evaluation(chromium: Any) -> None:
    """Draw the picture of an evaluation."""
    with tempfile.TemporaryDirectory() as folder:
        await evaluate(Path(folder))
        async with Inspector(folder).serving() as link, chromium.page(width=1280, height=620) as page:
            await page.goto(f"{link}#/evaluations")
            await page.until(READY.format("evaluations"))
            await page.click("tbody a")
            await page.until(READY.format("evaluation"))
            await page.click("tbody tr:nth-child(3) .fold")
            await save(page, "evaluation")


async def press(page: Any, *keys: str) -> None:
    """Press character keys."""
    for key in keys:
        await page.send("Input.dispatchKeyEvent", type="keyDown", key=key, text=key)
        await page.send("Input.dispatchKeyEvent", type="keyUp", key=key)
        await page.js("new Promise(requestAnimationFrame)")


async def until_chosen(page: Any, text: str) -> None:
    """Move the selection down to an event that contains a text."""
    for _ in range(200):
        if text in await page.js("document.querySelector('.line.chosen')?.innerText ?? ''"):
            return
        await press(page, "j")
    raise LookupError(f"No event of the page contains {text!r}.")


async def save(page: Any, name: str) -> None:
    """Save a screenshot of the page."""
    await page.js("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    (FOLDER / f"inspector-{name}.png").write_bytes(await page.screenshot())
    print(f"docs/screens/inspector-{name}.png")


async def draw() -> None:
    """Draw all pictures."""
    sys.path.append(str(ROOT / "tests" / "support"))
    browser: Any = import_module("browser").browser
    with tempfile.TemporaryDirectory() as folder:
        await record(Path(folder))
        inspector = Inspector(folder)
        look = {"width": 1280, "height": 820}
        async with inspector.serving() as link, browser() as chromium:
            for dark in (False, True):
                async with chromium.page(**look, dark=dark) as page:
                    await page.goto(link)
                    await page.until(READY.format("runs"))
                    await page.click(".runs tbody tr:nth-child(2) a")
                    await page.until(READY.format("run"))
                    if dark:
                        await press(page, "O")
                    await until_chosen(page, "openai/gpt-5-mini" if dark else 'read_page(url="https://shop.example/a')
                    await press(page, "2" if dark else "1")
                    await save(page, "conversation" if dark else "run")
            async with chromium.page(**look) as page:
                await page.goto(link)
                await page.until(READY.format("runs"))
                for row in (2, 1):
                    await page.click(f".runs tbody tr:nth-child({row}) input")
                await page.click(".filters .compare")
                await page.until(READY.format("compare"))
                await page.click(".differences summary")
                await save(page, "compare")
            async with chromium.page(**look) as page:
                await page.goto(link)
                point = Breakpoint(PreActing, tools=["delete_*"], ask=inspector.show_pause, limit=600, otherwise="deny")
                path = use(1, "delete_file", path="/srv/invoices/2019.txt")
                agent = Agent("clerk", ScriptedModel([path, "Done."]), tools=[delete_file], hooks=[point])
                call = asyncio.ensure_future(agent.call("Tidy up."))
                await page.until("document.querySelector('.paused')")
                await save(page, "pause")
                call.cancel()
            await evaluation(chromium)


if __name__ == "__main__":
    asyncio.run(draw())
