"""A breakpoint from the page: a run pauses, and is looked at, edited, decided and stepped through there."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from browser import Page
from inspected import clerk, client, opened, serving

from agentflow import Agent, PreActing, ToolUseBlock
from agentflow.plugins import Breakpoint, Pause, Recorder

pytestmark = pytest.mark.ci

if sys.platform == "win32":
    pytest.skip("needs Chromium", allow_module_level=True)

CALL = ToolUseBlock("t1", "delete_file", {"path": "/srv/<b>data</b>"})
PAUSED = "document.querySelector('.paused')?.innerText ?? ''"


def results(agent: Agent) -> list[str]:
    return [result.text for msg in agent.session().messages for result in msg.tool_results]


async def press(page: Page, button: str) -> None:
    """Press a button of the pause."""
    await page.js(
        f"[...document.querySelectorAll('.paused button')].find(one => one.textContent === '{button}').click()"
    )


async def test_a_run_is_edited_and_stepped_through(tmp_path: Path) -> None:
    """An edit is checked; a step pauses at the next event; going on takes the pause from the page."""
    async with serving(tmp_path / "runs") as (inspector, link), opened(link) as page:
        point = Breakpoint(PreActing, ask=inspector.show_pause)
        agent = clerk(point, Recorder(tmp_path / "runs"), script=[CALL, "Done."])
        call = asyncio.ensure_future(agent.call("Tidy up."))
        await page.until(f"({PAUSED}).includes('PreActing')")
        area = "document.querySelector('.paused textarea')"
        assert "/srv/<b>data</b>" in await page.js(f"{area}.value")
        await page.js(f"{area}.value = '{{\"input\": 3}}'")
        await press(page, "Set tool_use")
        await page.until("!document.querySelector('.paused .banner').hidden")
        assert "its input an object" in await page.js(PAUSED)
        assert ["409" in problem for problem in page.problems] == [True]  # a browser tells of each refused request
        page.problems.clear()
        await page.js(f'{area}.value = \'{{"input": {{"path": "/tmp/x"}}}}\'')
        await press(page, "Set tool_use")
        await page.until("document.querySelector('.paused .editor [role=status]').innerText === 'set'")
        await press(page, "Step")
        await page.until(f"({PAUSED}).includes('PostActing')")
        assert await page.js("document.querySelectorAll('.paused').length") == 1
        await press(page, "Continue")
        await page.until("document.querySelector('#pauses').hidden")
        assert (await call).text == "Done."
        assert results(agent) == ["gone"]
        ran = [msg.tool_uses for msg in agent.session().messages if msg.tool_uses]
        assert ran == [(CALL,)]


async def test_a_verdict_says_what_was_typed(tmp_path: Path) -> None:
    """Several runs paused at once are shown at once; each is decided for itself, and one that ends is taken away."""
    async with serving(tmp_path / "runs") as (inspector, link), opened(link) as page:
        point = Breakpoint(PreActing, ask=inspector.show_pause)
        one, two = (clerk(point, script=[CALL, "Done."]) for _ in range(2))
        calls = [asyncio.ensure_future(agent.call("Tidy up.")) for agent in (one, two)]
        await page.until("document.querySelectorAll('.paused').length === 2")
        two.interrupt(None, "enough")
        await page.until("document.querySelectorAll('.paused').length === 1")
        await page.js("document.querySelector('.paused input').value = 'not today'")
        await press(page, "Deny")
        await page.until("document.querySelector('#pauses').hidden")
        assert [(await call).outcome for call in calls] == ["completed", "interrupted"]
        assert results(one) == ["Denied: not today"]


NOTHING = "Unknown action for a paused run."


@pytest.mark.parametrize(
    ("asked", "why"),
    [
        ({"do": "nonsense"}, NOTHING),
        ({"do": "decide", "verdict": "Exec", "value": "x"}, NOTHING),
        (
            {"do": "decide", "verdict": "Stop", "value": "x"},
            "Stop is not allowed for this event. Allowed: Deny, Answer, Suspend.",
        ),
        ({"do": "decide", "verdict": "Answer", "value": " "}, "Answer needs a value."),
        ({"do": "edit", "field": "__class__", "value": "x"}, "__class__ is not writable. Writable: tool_use."),
        ({"do": "edit", "field": "tool_use", "value": "{"}, "at line 1 column 1."),
    ],
    ids=str,
)
async def test_nonsense_changes_nothing(tmp_path: Path, asked: dict[str, Any], why: str) -> None:
    """It is refused with the legal values; the run keeps waiting."""
    async with serving(tmp_path / "runs") as (inspector, link), client(link) as (http, base):
        http.headers["authorization"] = f"Bearer {inspector.token}"
        waits: asyncio.Future[Pause] = asyncio.get_running_loop().create_future()

        async def attend(pause: Pause) -> None:
            waiting = asyncio.ensure_future(inspector.show_pause(pause))
            await asyncio.sleep(0)
            waits.set_result(pause)
            await waiting

        agent = clerk(Breakpoint(PreActing, ask=attend), script=[CALL, "Done."])
        call = asyncio.ensure_future(agent.call("Tidy up."))
        pause = await waits
        async with http.post(f"{base}api/pauses/{pause.id}", json=asked) as response:
            assert response.status == 409
            assert (await response.text()).endswith(why)
        assert pause.ended is None
        async with http.post(f"{base}api/pauses/{pause.id}", json={"do": "continue"}) as response:
            assert response.status == 200
        await call
        assert results(agent) == ["gone"]
