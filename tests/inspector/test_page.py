"""The page in a real Chromium: opened, zoomed, searched, compared, printed, with the keyboard alone; hostile texts."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from browser import Page
from inspected import clerk, first_run, key, lines_of, opened, serving

from agentflow import Agent, ModelChunk, ToolUseBlock, tool
from agentflow._support.virtual_time import run_virtual
from agentflow.plugins import Approval, ApprovalRequest, Recorder
from agentflow.recording import load
from agentflow.recording.diffing import diff_runs
from agentflow.serve.inspector import export
from agentflow.testing import ScriptedModel
from tests.support.clocks import LoopClock

pytestmark = pytest.mark.ci

if sys.platform == "win32":
    pytest.skip("needs Chromium", allow_module_level=True)

DETAIL = "document.querySelector('.detail').innerText"
CHOSEN = "document.querySelector('.line.chosen')?.innerText ?? ''"
SHOWN = (
    "[...document.querySelectorAll('.line')].sort((a, b) => a.dataset.index - b.dataset.index).map(l => l.innerText)"
)


async def choose(page: Page, text: str) -> None:
    """Go down, with the keyboard, to an event that says a text."""
    if await page.js("document.querySelector('.fold') !== null"):
        await key(page, "O", "Home")
        if await page.js("document.querySelector('.line.group:not([aria-expanded=true])') !== null"):
            await key(page, "O")
    await key(page, "Home")
    for _ in range(200):
        if text in await page.js(CHOSEN):
            return
        await key(page, "j")
    raise AssertionError(f"no event says {text!r}")


async def test_runs_are_listed_filtered_and_opened(runs: Path) -> None:
    """Each with how it ended; the token leaves the address."""
    async with serving(runs) as (_, link), opened(link) as page:
        assert "token" not in await page.js("location.href")
        await page.until("document.querySelectorAll('.runs tbody tr').length === 2")
        row = await page.js("document.querySelector('.runs tbody tr').innerText")
        assert "clerk" in row
        assert "What is a bread?" in row
        assert "completed" in row
        await key(page, "/")
        await page.type("no such words")
        await page.until("document.querySelector('[role=status]').innerText === '0 of 2 runs'")
        await page.js("document.querySelector('#search').value = ''")
        await page.type(" ")
        await page.press("Escape")
        await first_run(page)
        assert await page.js("document.querySelector('h1').innerText") == "clerk\ncompleted"


async def test_events_are_selected_with_the_keyboard(runs: Path) -> None:
    """Down, up, to the next decision, to the next request; the selected item is shown in full."""
    async with serving(runs) as (_, link), opened(link) as page:
        await first_run(page)
        assert "PreCall" in await page.js(CHOSEN)
        await key(page, "j", "j", "k")
        assert "scripted" in await page.js(CHOSEN)  # the model's work, with all that happened in it
        await key(page, "o", "j")
        assert "PreReasoning" in await page.js(CHOSEN)
        assert "AddDate" in await page.js(DETAIL)
        assert (
            await page.js("[...document.querySelectorAll('.diff .ins')].at(-1).innerText") == "+ user: Today is Sunday."
        )
        await key(page, "e")
        assert "Error" in await page.js(CHOSEN)
        assert "404 Not Found" in await page.js(DETAIL)
        await choose(page, "KeepFiles")
        assert "KeepFiles Deny: files are kept" in await page.js("document.querySelector('.banner').innerText")
        await key(page, "]")
        assert "PreReasoning" in await page.js(CHOSEN)
        await key(page, "End")
        assert "CallEnded" in await page.js(CHOSEN)
        await key(page, "?")
        assert await page.js("document.querySelector('#help').open")
        await page.press("Escape")
        await key(page, "u")
        await page.until("document.querySelector('main').dataset.ready === 'runs'")


async def test_a_change_is_shown_as_a_diff(runs: Path) -> None:
    """Edited calls and results show removed and added text."""
    async with serving(runs) as (_, link), opened(link) as page:
        await first_run(page)
        await choose(page, 'read_page(url="https://shop/a")')
        assert await page.js("[...document.querySelectorAll('.diff mark')].map(m => m.innerText)") == ["http", "https"]
        assert await page.js("document.querySelector('.hook strong').innerText") == "redirect"


async def test_the_conversation_at_a_round(runs: Path) -> None:
    """As the model saw it: new messages, the answer, the offered tools."""
    async with serving(runs) as (_, link), opened(link) as page:
        await first_run(page)
        await key(page, "2")
        assert "Request 1 of 4" in await page.js(DETAIL)
        roles = "[...document.querySelectorAll('.message .role')].map(r => r.innerText)"
        assert await page.js(roles) == ["SYSTEM", "USER", "USER", "ASSISTANT"]
        await page.click(".steps button:last-child")
        await page.click(".steps button:last-child")
        said = await page.js(DETAIL)
        assert "Request 3 of 4" in said
        assert "read_page error" in said
        assert "404 Not Found" in said
        assert await page.js("document.querySelectorAll('.message.new').length") == 3
        await key(page, "3")
        assert "$0.002" in await page.js(DETAIL)


async def test_searching(runs: Path) -> None:
    """It covers all texts of events; Enter goes to the next match, Escape leaves."""
    async with serving(runs) as (_, link), opened(link) as page:
        await first_run(page)
        await key(page, "/")
        await page.type("FILES are kept")
        await page.until(f"{SHOWN}.length === 2")
        assert ["PreActing" in line or "PostActing" in line for line in await page.js(SHOWN)] == [True, True]
        await page.press("Enter")
        await key(page, "j")
        assert "PostActing" in await page.js(CHOSEN)
        await page.click(".kind:nth-child(6)")  # errors only
        await page.until(f"{SHOWN}.length === 0")


async def test_the_timeline_zooms_and_selects(runs: Path) -> None:
    """With keys, the wheel and a click; overlapping calls have rows of their own."""
    async with serving(runs) as (_, link), opened(link) as page:
        await first_run(page)
        box = await page.js(
            "(() => { const r = document.querySelector('canvas').getBoundingClientRect(); return [r.x, r.y, r.width]; })()"
        )
        pixels = "(() => { const c = document.querySelector('canvas'); return c.toDataURL(); })()"
        whole = await page.js(pixels)
        await key(page, "+", "+")
        await page.js("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
        closer = await page.js(pixels)
        assert closer != whole
        await key(page, "0")
        await page.js("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
        assert await page.js(pixels) == whole
        at = {"x": box[0] + box[2] / 2, "y": box[1] + 34}
        await page.send("Input.dispatchMouseEvent", type="mouseWheel", deltaX=0, deltaY=-300, modifiers=2, **at)
        await page.js("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
        assert await page.js(pixels) != whole
        await key(page, "0")
        for kind in ("mousePressed", "mouseReleased"):  # on the lane of the whole call
            await page.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **at)
        assert "CallEnded" in await page.js(CHOSEN)
        label = await page.js("document.querySelector('canvas').getAttribute('aria-label')")
        assert label.startswith("Timeline of 8 lanes")


async def test_two_runs_beside_each_other(runs: Path) -> None:
    """Marked in the list; aligned by rounds and calls, not by line; the first difference is the true one."""
    async with serving(runs) as (_, link), opened(link) as page:
        await page.click(".runs tbody tr:nth-child(2) input")
        await page.click(".runs tbody tr:nth-child(1) input")
        await page.click(".filters .compare")
        await page.until("document.querySelector('main').dataset.ready === 'compare'")
        parted = await page.js("document.querySelector('.parted').innerText")
        found = diff_runs(*[load(path) for path in sorted(runs.iterdir(), key=lambda path: path.stat().st_mtime)])  # noqa: ASYNC240 - a test's own files
        assert found.first is not None
        assert f"They diverge at {found.first.where}: {found.first.what}." in parted
        assert f"{len(found.differences)} differences" in await page.js("document.querySelector('main').innerText")
        assert "read_page" in await page.js(CHOSEN)
        said = await page.js(DETAIL)
        assert "[cut]" in said
        assert "Shorten changed tool_result" in said
        await key(page, "e")
        assert "PostToolRound" in await page.js(CHOSEN)


async def test_many_differences_scroll_in_their_own_box(tmp_path: Path) -> None:
    """The list of them pushes neither the events nor the page."""
    logs = [tmp_path / f"{name}.jsonl" for name in "ab"]
    for log in logs:
        log.write_text(lines_of(*[f"{log.stem} {n}" for n in range(80)]), "utf-8")
    async with opened(export(tmp_path / "two.html", *logs).as_uri()) as page:
        await page.click(".differences summary")
        box = "(name => { const e = document.querySelector(name); return [e.clientHeight, e.scrollHeight]; })"
        height, whole = await page.js(f"{box}('.differences')")
        assert 0 < height < whole
        assert (await page.js(f"{box}('.list')"))[0] > 100
        assert await page.js("document.documentElement.scrollHeight <= innerHeight")


HOSTILE = [
    "<script>window.hacked = 1</script>",
    "<img src=x onerror='window.hacked = 2'>",
    "<a href='javascript:window.hacked=3'>click</a> [a](javascript:window.hacked=3)",
    "</script><script>window.hacked = 4</script><!-- ",
    "evil \u202edesrever\u202c zero\u200bwidth \ufeff \u0000 \u001b[31m \u2028",
]


async def check_texts(page: Page) -> None:
    """Everything that shows the texts has been open, and they are texts."""
    for text in HOSTILE:
        await choose(page, "PostReasoning")
        for _ in range(HOSTILE.index(text)):
            await key(page, "j", "j", "j")
        await key(page, "2", "1")
        said = await page.js(DETAIL)
        plain = (
            text
            if text.isprintable()
            else "evil \\u{202e}desrever\\u{202c} zero\\u{200b}width \\u{feff} \\u{0} \\u{1b}[31m \\u{2028}"
        )
        assert plain.strip() in said
    assert await page.js("window.hacked ?? null") is None
    assert await page.js("document.querySelectorAll('main script, main a, main img, main iframe').length") == 0


async def test_hostile_texts_are_texts(tmp_path: Path) -> None:
    """A model's text is never markup, and invisible characters are escaped: on the page and in an export."""
    log = tmp_path / "run.jsonl"
    log.write_text(lines_of(*HOSTILE), "utf-8")
    async with serving(log) as (_, link), opened(link) as page:
        await first_run(page)
        await check_texts(page)
    file = export(tmp_path / "report.html", log)
    async with opened(file.as_uri()) as page:
        await check_texts(page)


async def test_a_very_long_message(tmp_path: Path) -> None:
    """Ten megabytes are shown in chunks and searched without blocking the page."""
    log = tmp_path / "run.jsonl"
    log.write_text(lines_of("x" * 10_000_000 + " needle", "short"), "utf-8")
    async with serving(log) as (_, link), opened(link) as page:
        await first_run(page)
        await choose(page, "PostReasoning")
        assert await page.js(f"{DETAIL}.length") < 50_000
        assert "9994k characters more" in await page.js(DETAIL)
        await page.click(".more")
        assert 200_000 < await page.js(f"{DETAIL}.length") < 300_000
        await key(page, "/")
        await page.type("needle")
        await page.until(f"{SHOWN}.length === 1")


async def test_a_hundred_thousand_events(tmp_path: Path) -> None:
    """Only visible rows exist; the last event is one key away."""
    log = tmp_path / "run.jsonl"
    log.write_text(lines_of(*[f"reply {n}" for n in range(50_000)]), "utf-8")
    async with serving(log) as (_, link), opened(link) as page:
        await first_run(page)
        assert await page.js("document.querySelectorAll('.line').length") < 60
        await key(page, "End")
        assert "CallEnded" in await page.js(CHOSEN)
        await page.js("document.querySelector('.list').scrollTop = document.querySelector('.list').scrollHeight / 2")
        await page.until("[...document.querySelectorAll('.line')].some(line => line.innerText.includes('reply 25000'))")
        await key(page, "/")
        await page.type("reply 49999")
        await page.until(f"{SHOWN}.length === 1")


async def test_an_export_is_one_file_that_loads_nothing(runs: Path, tmp_path: Path) -> None:
    """A run, or two beside each other; it works from the disk, and its policy lets nothing else run."""
    logs = sorted(runs.iterdir())  # noqa: ASYNC240 - a test's own files
    file = export(tmp_path / "one.html", logs[0])
    async with opened(file.as_uri()) as page:
        assert await page.js("document.querySelector('h1').innerText") == "clerk\ncompleted"
        await choose(page, "KeepFiles")
        assert await page.js("performance.getEntriesByType('resource').length") == 0
        await page.js("eval; 1")
        with pytest.raises(AssertionError):
            await page.js(
                "(() => { const s = document.createElement('script'); s.textContent = '1'; document.body.append(s); })()"
            )
        page.problems.clear()
    file = export(tmp_path / "two.html", *logs)
    async with opened(file.as_uri()) as page:
        assert "They diverge at" in await page.js("document.querySelector('.parted').innerText")


async def test_on_paper(runs: Path) -> None:
    """A print has the run, its timeline, effects of hooks, and the conversation."""
    async with serving(runs) as (_, link), opened(link) as page:
        await first_run(page)
        await page.js("dispatchEvent(new Event('beforeprint'))")
        await page.send("Emulation.setEmulatedMedia", media="print")
        said = await page.js("document.body.innerText")
        assert "Decisions, changes and errors" in said
        assert "KeepFiles: Deny: files are kept" in said
        assert "A bread is 2.25." in said
        assert await page.js("getComputedStyle(document.querySelector('main')).display") == "none"


@pytest.mark.parametrize("width", [400, 1280])
async def test_nothing_is_wider_than_the_page(runs: Path, width: int) -> None:
    """On a phone and on a desktop, long texts are truncated or wrapped."""
    async with serving(runs) as (_, link), opened(link, width=width) as page:
        assert await page.js("document.documentElement.scrollWidth <= innerWidth")
        await first_run(page)
        for tab in "123":
            await key(page, tab)
            assert await page.js("document.documentElement.scrollWidth <= innerWidth")


@pytest.mark.parametrize("writer_came", [False, True])
async def test_a_torn_log_is_shown_as_far_as_it_goes(runs: Path, tmp_path: Path, writer_came: bool) -> None:
    """A half-written line of a killed process is skipped with a note; the lines after it are read."""
    log = max(runs.iterdir(), key=lambda path: path.stat().st_mtime)  # noqa: ASYNC240 - a test's own files
    data = log.read_bytes()
    log.write_bytes(data[: len(data) * 2 // 3].rpartition(b"\n")[0] + b'\n{"kind": "event", "ty' + b"\n" * writer_came)
    file = export(tmp_path / "report.html", log)
    async with serving(log) as (_, link), opened(link) as page:
        await first_run(page)
        assert await page.js("document.querySelector('h1').innerText") == "clerk\nrunning"
        said = "1 line of the log cannot be read"
        assert (said in await page.js("document.body.innerText")) is writer_came
        count = await page.js("document.querySelector('.stats').innerText")
        await page.goto(file.as_uri())
        await page.until("document.querySelector('main').dataset.ready")
        assert await page.js("document.querySelector('.stats').innerText") == count


async def test_a_run_grows_while_it_is_looked_at(tmp_path: Path) -> None:
    """The list shows a new run; its events appear as they are recorded, and the last one is followed."""
    folder = tmp_path / "later"
    async with serving(folder) as (_, link), opened(link) as page:
        assert "0 of 0 runs" in await page.js("document.body.innerText")
        recorder = Recorder(folder)
        agent = clerk(recorder, script=["One.", "Two."])
        await agent.call("Hello")
        recorder.flush()
        await page.until("document.querySelectorAll('.runs tbody tr').length === 1")
        await first_run(page)
        log = next(folder.iterdir())
        count = await page.js("Number([...document.querySelectorAll('.stats dd')].at(-1).innerText)")
        call = json.loads(log.read_text("utf-8").splitlines()[1])
        later = {**call, "call": "c2", "parent": {"call": call["call"]}, "source": "inner"}
        with log.open("a", encoding="utf-8") as file:
            file.write(f'{json.dumps(later)}\n{{"kind": "event", "type": "Error", "call": "c2", "seq": 1, "fields": ')
            file.flush()  # half a line is none
            file.write('{"phase": "call", "error": {"type": "X", "message": "late"}}}\n')
        await page.until(f"Number([...document.querySelectorAll('.stats dd')].at(-1).innerText) === {count + 1}")
        await key(page, "End")
        assert "X: late" in await page.js(CHOSEN)


async def test_what_hooks_say_in_a_sub_agent(tmp_path: Path) -> None:
    """A sub-agent's events are in its caller's run, marked by their source, on lanes of their own."""
    recorder = Recorder(tmp_path / "runs")
    inner = Agent("inner", ScriptedModel(["Fine."]))
    outer: Any = Agent(
        "outer",
        ScriptedModel([ToolUseBlock("t", "inner", {"message": "Hm?"}), "Ok."]),
        tools=[inner.as_tool()],
        hooks=[recorder],
    )
    await outer.call("Ask.")
    recorder.close()
    async with serving(tmp_path / "runs") as (_, link), opened(link) as page:
        await first_run(page)
        await choose(page, "PreCall\nHm?")
        assert "agent\ninner" in await page.js(DETAIL)


GROUPS = "[...document.querySelectorAll('.line.group .type')].map(t => t.innerText)"


async def test_work_is_a_tree_that_folds(runs: Path) -> None:
    """Calls, model replies, rounds and tools with their events inside, a sub-agent inside its tool; each with a bar."""
    async with serving(runs) as (_, link), opened(link) as page:
        await first_run(page)
        assert await page.js(GROUPS) == [
            *("clerk", "scripted", "tools", "checker", "read_page", "read_page"),
            *("scripted", "tools", "delete_file", "scripted"),
        ]
        assert "PostReasoning" not in await page.js("document.querySelector('.list').innerText")
        await page.click(".line.group:nth-child(n) .fold")  # the whole call
        assert await page.js(f"{SHOWN}.length") == 1
        assert await page.js("document.querySelector('.line').getAttribute('aria-expanded')") == "false"
        await key(page, "o", "O")
        assert await page.js("document.querySelectorAll('.line.group[aria-expanded=false]').length") == 0
        levels = (
            "[...document.querySelectorAll('.line')].filter(l => l.innerText.includes('TEXT')).map(l => l.ariaLevel)"
        )
        assert "4" in await page.js(levels.replace("TEXT", "PreActing"))
        await choose(page, "checker\nchecker(")
        await key(page, "j", "j")
        assert "checker" in await page.js(CHOSEN)  # the sub-agent's call, inside the tool's
        assert int(await page.js("document.querySelector('.line.chosen').ariaLevel")) == 4
        bars = "[...document.querySelectorAll('.line.group .bar span')].map(b => b.getBoundingClientRect().width)"
        assert all(width > 0 for width in await page.js(bars))
        await choose(page, "delete_file\ndenied")
        said = await page.js(DETAIL)
        assert "delete_file\ntool\ndenied" in said
        assert "PreActing" in said
        assert "PostActing" in said


async def test_waiting_is_told_apart_from_work(tmp_path: Path) -> None:
    """The time that a tool call waited for its approval is not included in its duration."""

    async def person(request: ApprovalRequest) -> bool:
        await asyncio.sleep(35)
        return True

    @tool
    async def pay(cents: int) -> str:
        """Pay."""
        await asyncio.sleep(2)
        return "paid"

    async def pays() -> None:
        script = ScriptedModel([ToolUseBlock("t", "pay", {"cents": 1}), "ok"])
        hooks = [Approval(ask=person), Recorder(tmp_path)]
        await Agent("clerk", script, tools=[pay], hooks=hooks, clock=LoopClock()).call("Pay.")

    await asyncio.to_thread(run_virtual, pays())
    async with serving(tmp_path) as (_, link), opened(link) as page:
        await first_run(page)
        await choose(page, "pay\nwaited 35.0 s")
        assert "\n2.00 s" in await page.js(CHOSEN)
        said = await page.js(DETAIL)
        assert "took\n2.00 s" in said
        assert "waited\n35.0 s" in said


async def test_an_event_in_a_folded_place_is_shown(runs: Path) -> None:
    """Going to an error opens its group; names in chunks of calls are separated."""
    async with serving(runs) as (_, link), opened(link) as page:
        await first_run(page)
        await key(page, "e")
        assert "Error" in await page.js(CHOSEN)
        await choose(page, "ReasoningChunk")
        assert 'look. → read_page {"url":"http://shop/a"} → read_page' in await page.js(CHOSEN)


async def test_a_conversation_opens_at_what_is_new(tmp_path: Path) -> None:
    """And not at a system prompt that fills the panel."""
    recorder = Recorder(tmp_path / "runs")
    agent = Agent("a", ScriptedModel(["One.", "Two."]), system="Be brief.\n" * 300, hooks=[recorder])
    await agent.call("First")
    await agent.call("Second")
    recorder.close()
    async with serving(tmp_path / "runs") as (_, link), opened(link) as page:
        await first_run(page)
        await key(page, "2")
        assert await page.js("[...document.querySelectorAll('.message.new')].map(m => m.innerText)") == [
            "USER\nnew\nSecond"
        ]
        seen = "(e => { const r = e.getBoundingClientRect(); return r.top > 0 && r.bottom < innerHeight; })"
        assert await page.js(f"{seen}(document.querySelector('.message.new'))")


async def test_runs_are_found_across_logs(runs: Path) -> None:
    """By text, tool, hook, outcome, age, length and cost; filters combine, and are cleared together."""
    async with serving(runs) as (_, link), opened(link) as page:
        shown = "document.querySelectorAll('.runs tbody tr').length"
        await page.until(f"{shown} === 2")
        await key(page, "/")
        await page.type("bread is 2.25 [CUT]")
        await page.until(f"{shown} === 1")
        await page.click(".clear")
        await page.until(f"{shown} === 2")
        for name, value, left in (
            ("Tool", "delete_file", 2),
            ("Hook", "Shorten", 1),
            ("Outcome", "completed", 1),
            ("Began", "3600", 1),
            ("Cost", "0.001", 1),
            ("Took", "600", 0),
        ):
            change = f"s.value = '{value}'; s.dispatchEvent(new Event('input'))"
            await page.js(f"(s => {{ {change} }})(document.querySelector('select[aria-label={name}]'))")
            assert await page.js(shown) == left, name
        await page.click(".clear")
        assert await page.js(shown) == 2


async def test_a_phone_begins_with_the_events(runs: Path) -> None:
    """Timeline and filters are folded there; the events begin in the upper third of the screen."""
    async with serving(runs) as (_, link), opened(link, width=390, height=800) as page:
        assert await page.js("document.querySelector('select').checkVisibility()") is False
        await first_run(page)
        assert await page.js("document.querySelector('canvas').checkVisibility()") is False
        assert await page.js("document.querySelector('.list').getBoundingClientRect().top < innerHeight / 3")


async def test_a_damaged_log_is_one_row(runs: Path) -> None:
    """It shows the error, and the other runs are listed."""
    (runs / "broken.jsonl").write_text(
        '{"kind": "log", "form": "agentflow.run-log", "version": 1, "writer": "w", "time": 0}\n[]\n'
    )
    async with serving(runs) as (_, link), opened(link) as page:
        await page.until("document.querySelectorAll('.runs tbody tr').length === 3")
        said = await page.js("document.querySelector('.runs').innerText")
        assert "broken.jsonl, line 2, is not a run log entry: it is not a JSON object." in said


async def test_an_interrupt_has_a_row(tmp_path: Path) -> None:
    """An ended call shows how and why, as an error that a key finds; on the timeline all bars end there."""
    recorder = Recorder(tmp_path / "runs")

    async def interrupted() -> None:
        agent.interrupt(None, "enough <b>of</b> it")

    agent = clerk(recorder, script=[[ModelChunk("Let me"), interrupted, ModelChunk(" look.")]])
    await agent.call("Hello")
    recorder.close()
    async with serving(tmp_path / "runs") as (_, link), opened(link) as page:
        await first_run(page)
        assert await page.js("document.querySelector('h1').innerText") == "clerk\ninterrupted"
        await key(page, "e")
        assert "Interrupt\ninterrupt enough <b>of</b> it" in await page.js(CHOSEN)
        assert "enough <b>of</b> it" in await page.js(DETAIL)
