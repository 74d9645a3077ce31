"""The web chat in a real Chromium: it streams, asks, stops, edits, reconnects, and takes every text for text."""

from __future__ import annotations

import asyncio
import base64
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from browser import Browser, Page, browser
from serve_client import Gate, connected, served

from agentflow import Agent, DataBlock, ModelChunk, ModelRequest, PreActing, Suspend, ToolUseBlock, Usage, on, tool
from agentflow.serve import App, Limits, View, bearer_tokens
from agentflow.testing import ScriptedModel
from agentflow.vocabulary import Citation

pytestmark = pytest.mark.ci

if sys.platform == "win32":
    pytest.skip("needs Chromium", allow_module_level=True)

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
FULL = View(tools="full", thinking=True, cost=True)
READY = "document.querySelector('#status').dataset.state === 'ready'"
SETTLED = f"{READY} && [...document.querySelectorAll('.user')].every(item => item.dataset.id)"
ASKS = "document.activeElement.matches('.ask')"
TEXTS = "[...document.querySelectorAll('#log > li')].map(item => item.innerText.trim().replace(/\\n+/g, '\\n'))"
TITLES = "[...document.querySelectorAll('#sessions bdi')].map(item => item.innerText)"


def said(text: str) -> str:
    """The condition that a text is shown."""
    return f"document.querySelector('#log').innerText.includes({json.dumps(text)})"


def texts_are(*texts: str) -> str:
    """The condition that these items are shown, and everything has ended."""
    return f"{SETTLED} && JSON.stringify({TEXTS}) === JSON.stringify({json.dumps(texts)})"


@asynccontextmanager
async def opened(app: App, **how: Any) -> AsyncIterator[tuple[str, Page]]:
    """A page that shows an application."""
    async with browser() as chromium, served(app) as url, shown(chromium, url, **how) as page:
        yield url, page


@asynccontextmanager
async def shown(chromium: Browser, url: str, **how: Any) -> AsyncIterator[Page]:
    """A page that is ready."""
    async with chromium.page(**how) as page:
        await page.goto(f"{url}/")
        await page.until(READY)
        yield page


async def say(page: Page, text: str) -> None:
    """Type and send, with the keyboard."""
    await page.js("document.querySelector('#text').focus()")
    await page.type(text)
    await page.press("Enter")


async def tab_to(page: Page, text: str) -> None:
    """Go to a button, with the keyboard."""
    for _ in range(10):
        await page.press("Tab")
        if await page.js("document.activeElement.innerText") == text:
            return
    raise AssertionError(f"no button {text!r}")


def chat(model: Any, view: View | None = None, **more: Any) -> App:
    """An application with the web chat and one agent."""
    return App(Agent("a", model, **more), ui=True, view=view)


@tool(type="read")
async def look_up(number: int) -> AsyncIterator[str]:
    yield "searching "
    yield "found"


@tool(requires_approval=True)
async def refund(number: int) -> str:
    return f"refunded {number}"


def replies(request: ModelRequest) -> Any:
    """Answer after a refund, or ask for one."""
    last = request.messages[-1]
    return f"It is {last.tool_results[0].text}." if last.role == "tool" else ToolUseBlock("t1", "refund", {"number": 7})


async def test_text_streams_and_a_reload_shows_the_same() -> None:
    """Text as it arrives, thinking and tools folded with their parts, sources, usage; the history has the same."""
    gate = Gate()
    source = Citation(url="https://example.com/orders", title="Orders", text="7")
    model = ScriptedModel(
        [
            [ModelChunk(thinking="Hm."), "One ", gate, "moment.", ToolUseBlock("t1", "look_up", {"number": 7})],
            [
                "It is **here**.",
                ModelChunk(citations=(source,)),
                ModelChunk(blocks=(DataBlock.from_bytes(PIXEL),), usage=Usage(1200, 34, cost=0.25)),
            ],
        ]
    )
    async with opened(chat(model, FULL, tools=[look_up])) as (_, page):
        assert await page.js("!document.querySelector('#welcome').hidden && document.querySelector('#send').disabled")
        await say(page, "Where is it?")
        await page.until(said("One"))
        assert await page.js("document.querySelector('#status').textContent") == "Answering…"
        assert await page.js("document.querySelector('#log').ariaBusy") == "true"
        gate.open.set()
        texts = ("Where is it?", "Thinking\nOne opened moment.", "look_up\ndone", "It is here.\nSources (1)")
        await page.until(texts_are(*texts))
        assert await page.js("document.querySelector('#usage').textContent") == "1,200 tokens in · 34 out · $0.250"
        for reloaded in (False, True):
            if reloaded:
                await page.reload()
                await page.until(texts_are(*texts))
            await page.js("document.querySelectorAll('details').forEach(part => part.open = true)")
            parts = (
                "[...document.querySelectorAll('.thinking div, .parts pre, .sources li')].map(part => part.innerText)"
            )
            output = [] if reloaded else ["searching found"]
            arguments = '{\n  "number": 7\n}'
            expected = ["Hm.", arguments, *output, "searching found", "Orders (example.com)"]
            assert await page.js(parts) == expected
            assert await page.js("document.querySelector('.text strong').innerText") == "here"
            assert await page.js("document.querySelector('img.file').naturalWidth") == 1
        assert page.problems == []


@pytest.mark.parametrize("answer", ["approve", "deny", "edit"])
async def test_a_question_is_answered_with_the_keyboard(answer: str) -> None:
    """The question has the focus, even after a reload; arguments can be edited; the answer resumes the run."""
    async with opened(chat(ScriptedModel(replies), tools=[refund])) as (_, page):
        await say(page, "Refund it")
        await page.until(ASKS)
        await page.reload()
        await page.until(ASKS)
        assert await page.js("document.querySelector('.ask').innerText.startsWith('Allow “refund”?')")
        await page.press("Enter")  # one too many decides nothing
        if answer == "edit":
            await page.js("[...document.querySelectorAll('.ask button')].at(-1).focus()")
            await page.press("Enter")
            for text, problem in (("[]", "The arguments are not a JSON object."), ('{"number": "x"}', None)):
                await page.js("document.querySelector('.ask textarea').select()")
                await page.type(text)
                await page.click(".ask .main")
                if problem:
                    assert await page.js("document.querySelector('.problem').innerText") == problem
            await page.until(f"{said('The edited arguments are invalid.')} && {ASKS}")  # asked again
            await page.js("[...document.querySelectorAll('.ask button')].at(-1).click()")
            await page.js("document.querySelector('.ask textarea').select()")
            await page.type('{"number": 8}')
        elif answer == "deny":
            await page.js("document.querySelector('.ask input').focus()")
            await page.type("not today")
        await tab_to(page, "Deny" if answer == "deny" else "Approve")
        await page.press("Enter")
        word = {"approve": "refunded 7.", "edit": "refunded 8.", "deny": "not today"}[answer]
        await page.until(f"{READY} && {said(word)}")
        assert await page.js("document.querySelectorAll('.ask').length") == 0
        assert [one for one in page.problems if "422" not in one] == []


async def test_an_external_call_is_answered() -> None:
    """The result that a person enters is the tool's: JSON as its value, other text as text."""

    @tool(external=True)
    async def refund(number: int) -> str: ...

    async with opened(chat(ScriptedModel(replies), tools=[refund])) as (_, page):
        await say(page, "Refund it")
        await page.until(ASKS)
        await page.js("document.querySelector('.ask textarea').focus()")
        await page.type("by hand")
        await page.click(".ask .main")
        await page.until(f"{READY} && {said('It is by hand.')}")
        assert page.problems == []


@pytest.mark.parametrize("by", ["Escape", "mouse"])
async def test_an_answer_is_stopped(by: str) -> None:
    """Escape and the button end the run; its text stays, and the next message is answered."""
    model = ScriptedModel([["Once upon a time ", asyncio.Event().wait], "Yes."])
    async with opened(chat(model)) as (_, page):
        await say(page, "A story")
        await page.until(said("Once upon a time"))
        await (page.press("Escape") if by == "Escape" else page.click("#stop"))
        await page.until(f"{READY} && {said('You stopped the answer.')}")
        await say(page, "Are you there?")
        await page.until(f"{READY} && {said('Yes.')}")
        assert await page.js(said("Once upon a time"))
        assert page.problems == []


async def test_retry_and_edit_continue_in_a_copy() -> None:
    """A message can be retried, or edited, at any place; the earlier conversation stays in the list."""
    heard: list[list[str]] = []

    def model(request: ModelRequest) -> str:
        heard.append([msg.text for msg in request.messages if msg.role == "user"])
        return f"Answer {len(heard)}."

    async with opened(chat(ScriptedModel(model))) as (_, page):
        for number, text in enumerate(("One", "Two"), 1):
            await say(page, text)
            answered = f"document.querySelectorAll('.reply').length === {number}"
            await page.until(f"{SETTLED} && {answered} && !document.querySelector('#after').hidden")
        await page.click("#retry")
        await page.until(texts_are("One", "Answer 1.", "Two", "Answer 3."))
        await page.press("Tab")
        await page.js("document.querySelector('#text').focus()")
        await page.send(
            "Input.dispatchKeyEvent", type="keyDown", key="ArrowUp", code="ArrowUp", windowsVirtualKeyCode=38
        )
        assert await page.js("document.querySelector('#text').value") == "Two"
        await page.press("Escape")
        assert (
            await page.js("document.querySelector('#text').value + document.querySelector('#editing').hidden") == "true"
        )
        await page.click(".user .edit")
        await page.js("document.querySelector('#text').select()")
        await say(page, "Eins")
        await page.until(texts_are("Eins", "Answer 4."))
        await page.until(f'JSON.stringify({TITLES}) === \'["Eins","One","One"]\'')
        assert heard == [["One"], ["One", "Two"], ["One", "Two"], ["Eins"]]
        assert page.problems == []


async def test_several_conversations() -> None:
    """They are listed with titles, opened by their address, and deleted after a question; agents have their own."""
    agents = [Agent(name, ScriptedModel(lambda request: f"I heard {request.messages[-1].text}.")) for name in "ab"]
    async with opened(App(agents, ui=True)) as (_, page):
        for text in ("First", "Second"):
            await page.js("document.querySelector('#new').click()")
            await page.until(texts_are())
            await say(page, text)
            await page.until(texts_are(text, f"I heard {text}."))
        await page.reload()
        await page.until(f'JSON.stringify({TITLES}) === \'["Second","First"]\'')
        await page.click("#sessions li:last-child a")
        await page.until(texts_are("First", "I heard First."))
        assert await page.js("document.title") == "First · a"
        await page.js("document.querySelector('#sessions li:last-child button').click()")
        await page.until("document.querySelector('#sure').open")
        await page.press("Enter")  # keeps it
        await page.until("!document.querySelector('#sure').open")
        await page.js("document.querySelector('#sessions li:last-child button').click()")
        await page.until("document.querySelector('#sure').open")
        await page.click("#sure .danger")
        await page.until(f"JSON.stringify({TITLES}) === '[\"Second\"]' && {texts_are()}")
        await page.js("document.querySelector('#agent').value = 'b'; document.querySelector('#agent').onchange()")
        await page.until(f"JSON.stringify({TITLES}) === '[]' && document.querySelector('#title').innerText === 'b'")
        await page.js("location.hash = '#/a/no_such_session'")
        await page.until(said("There is no such conversation."))
        assert [one for one in page.problems if "404" not in one] == []


async def test_a_message_to_a_running_answer() -> None:
    """While an answer streams, a further message is sent to the running call."""
    gate = Gate()
    heard: list[str] = []

    def model(request: ModelRequest) -> Any:
        heard.append(request.messages[-1].text)
        return [gate, "yes"] if len(heard) == 1 else "Brief."

    async with opened(chat(ScriptedModel(model))) as (_, page):
        await say(page, "A story")
        await gate.reached.wait()
        await page.until("document.querySelector('#status').dataset.state === 'busy'")
        await say(page, "Be brief")
        await page.until(said("Be brief"))
        gate.open.set()
        await page.until(f"{SETTLED} && {said('Brief.')}")
        assert heard == ["A story", "Be brief"]
        assert page.problems == []


async def test_a_lost_stream_loses_and_repeats_nothing() -> None:
    """The server closes a silent stream; the page reconnects, and shows each text once."""
    gate = Gate()
    app = App(Agent("a", ScriptedModel([["One ", gate, "three."]])), ui=True, limits=Limits(heartbeat=0.05, idle=0.1))
    async with opened(app) as (_, page):
        await say(page, "Count")
        await page.until(said("One"))
        await asyncio.sleep(0.5)  # several streams are closed in this time
        gate.open.set()
        await page.until(texts_are("Count", "One opened three."))
        assert page.problems == []


async def test_a_failure_names_its_reference() -> None:
    """The page shows no error text, but where the log has it; a retry repeats the message."""
    async with opened(chat(ScriptedModel([["I am ", ConnectionError("SECRET")], "Better."]))) as (_, page):
        await say(page, "Hi")
        await page.until(f"{SETTLED} && {said('Something went wrong.')}")
        await page.click("#retry")
        await page.until(texts_are("Hi", "Better."))
        assert not await page.js("document.body.innerText.includes('SECRET')")


async def test_two_tabs_show_the_same() -> None:
    """A second tab shows the running answer as it streams, can stop it, and keeps what was typed."""
    async with opened(chat(ScriptedModel([["Counting ", asyncio.Event().wait], "Two."]))) as (_, page):
        await say(page, "Count")
        await page.until(said("Counting"))
        tab = await page.tab()
        await tab.goto(await page.js("location.href"))
        await tab.until(said("Counting"))
        await page.js("document.querySelector('#text').value = 'Me too'")
        await tab.press("Escape")
        for one in (page, tab):
            await one.until(f"{READY} && {said('You stopped the answer.')}")
        await tab.close()
        await say(page, "")
        await page.until(f"{SETTLED} && {said('Me too')} && {said('Two.')}")


async def test_a_token_signs_in() -> None:
    """The files are public; data needs the token, which the page asks for and keeps for the tab."""
    app = App(Agent("a", ScriptedModel(["Hello."])), ui=True, auth=bearer_tokens({"a-long-random-token": "ada"}))
    async with browser() as chromium, served(app) as url, chromium.page() as page, connected(url) as client:
        assert [await client.ask_status("GET", path) for path in ("/", "/ui/chat.js", "/agents")] == [200, 200, 401]
        await page.goto(f"{url}/")
        for token in ("wrong", "a-long-random-token"):
            await page.until("document.querySelector('#login').open && !document.querySelector('#token').value")
            await page.type(token)
            await page.press("Enter")
        await page.until(READY)
        await say(page, "Hi")
        await page.until(texts_are("Hi", "Hello."))
        await page.reload()
        await page.until(texts_are("Hi", "Hello."))


NASTY = (
    "<script>window.broken = 1</script><img src=x onerror='window.broken = 2'><svg onload='window.broken = 3'>"
    '<a href="javascript:window.broken = 4">click</a> [click](javascript:window.broken=5) <style>body{display:none}</style>'
    "</div></li><iframe srcdoc='<script>parent.broken = 6</script>'></iframe>\u202egnp.exe\u202c \u200b\u200d\u2066\u2069 "
    '\u05e9\u05dc\u05d5\u05dd {{constructor}} \u0000\u001b[31m \u2028data: {"type":"end"}\n\ndata: {"type":"end"}\n\n'
    "![pixel](https://evil.example/?leak) [docs.python.org](https://evil.example/) <https://evil.example/auto>\n"
)


async def test_every_text_is_text() -> None:
    """Markup, scripts, links, bidi overrides and forged events in every field: shown, and inert; also in titles."""

    @tool(type="read", name="look_up_order")
    async def look_up_order(number: str) -> str:
        return NASTY

    @on(PreActing)
    def ask(event: PreActing) -> Suspend:
        return Suspend({"question": NASTY})

    calls = [ToolUseBlock("__proto__", "look_up_order", {"number": NASTY}), ToolUseBlock(NASTY, NASTY, {NASTY: NASTY})]
    source = Citation(url="javascript:window.broken=7", title=NASTY, text=NASTY)

    def brain(request: ModelRequest) -> Any:
        cited = ModelChunk(citations=(source, Citation(url="https://evil.example/", title=NASTY)))
        chunks = [ModelChunk(thinking=NASTY), NASTY, cited]
        return [*chunks, *calls] if request.messages[-1].role == "user" else chunks

    view = View(tools="full", thinking=True, labels={"look_up_order": NASTY})
    agent = Agent("a", ScriptedModel(brain), description=NASTY, tools=[look_up_order], hooks=[ask])
    inert = (
        "window.broken === undefined && !document.querySelector('#log :is(script, img, style, iframe, svg[onload])')"
        " && [...document.links].every(one => one.hash || one.href.startsWith('https://evil.example/'))"
        " && getComputedStyle(document.body).display === 'grid'"
    )
    async with opened(App(agent, view=view, ui=True)) as (_, page):
        await say(page, NASTY)
        await page.until(ASKS)
        for _ in range(2):
            await page.js("document.querySelectorAll('details').forEach(part => part.open = true)")
            assert await page.js(inert)
            shown = await page.js("document.querySelector('.reply .text').innerText")
            assert "<script>window.broken = 1</script><img src=x onerror='window.broken = 2'>" in shown
            assert "[click](javascript:window.broken=5)" in shown
            assert "docs.python.org (evil.example)" in shown  # where a link leads
            asked = await page.js("document.querySelector('.ask').innerText")
            assert "\\u{202e}gnp.exe\\u{202c}" in asked  # a person who decides sees what could deceive them
            assert "\u202e" not in asked
            assert "\u202e" not in await page.js("document.title + document.querySelector('#side').innerText")
            await page.reload()
            await page.until(ASKS)
        for _ in range(2):
            await page.click(".ask .main")
            await page.until(f"{ASKS} || {READY}")
        await page.until(f"{SETTLED} && document.querySelectorAll('.reply').length === 2")
        assert await page.js(inert)
        assert page.problems == []


async def test_nothing_may_run_that_is_not_ours() -> None:
    """If text became markup all the same, the policy of the page would refuse to make it, to run it, and to load it."""
    async with opened(chat(ScriptedModel([]))) as (_, page):
        made = "(() => { try { document.body.innerHTML = '<b>x</b>'; return 'made'; } catch { return 'refused'; } })()"
        assert await page.js(made) == "refused"
        handler = (
            "(() => { const item = document.createElement('p'); document.body.append(item);"
            "try { item.setAttribute('onclick', 'window.broken = 1'); item.click(); } catch {} return window.broken; })()"
        )
        assert await page.js(handler) is None
        outside = "new Promise((ended) => { const image = new Image(); image.onload = () => ended('loaded');"
        load = f"{outside} image.onerror = () => ended('refused'); image.src = 'http://127.0.0.2:9/pixel.png'; }})"
        assert await page.js(load) == "refused"
        fetched = "fetch('http://127.0.0.2:9/').then(() => 'sent', (error) => error.message)"
        assert "violates" in await page.js(fetched) or "Content Security" in " ".join(page.problems)
        assert await page.js("crossOriginIsolated || window.opener === null")


MARKDOWN = {
    "a *b* **c** `d` ~~e~~ \\*f\\*": "<p>a <em>b</em> <strong>c</strong> <code>d</code> <s>e</s> *f*</p>",
    "snake_case_name and 2*3*4 ** not": "<p>snake_case_name and 2<em>3</em>4 ** not</p>",
    "***x***": "<p><strong><em>x</em></strong></p>",
    "# A\nb\n\n---": "<h3>A</h3><p>b</p><hr>",
    "- a\n- b\n  - c\n\n1. d\n2. e": "<ul><li>a</li><li><p>b</p><ul><li>c</li></ul></li></ul><ol><li>d</li><li>e</li></ol>",
    "> a\n> b": "<blockquote>a\nb</blockquote>",
    "a\n```\n<b>\n```": (
        "<p>a</p><figure><figcaption><button>Copy</button></figcaption><pre><code>&lt;b&gt;</code></pre></figure>"
    ),
    "```py\nopen": "<figure><figcaption>py<button>Copy</button></figcaption><pre><code>open</code></pre></figure>",
    "|a|b|\n|-|-:|\n|1|2|3|": (
        "<div><table><thead><tr><th>a</th><th>b</th></tr></thead><tbody><tr><td>1</td><td>2</td></tr></tbody></table></div>"
    ),
    "[a](https://b.example/c) https://d.example.": (
        '<p><a href="https://b.example/c">a</a><small> (b.example)</small> '
        '<a href="https://d.example">https://d.example</a>.</p>'
    ),
    "![a](https://b.example/c.png)": '<p><a href="https://b.example/c.png">Image: a</a><small> (b.example)</small></p>',
    "[a](data:text/html,x) [b](//c.example)": "<p>[a](data:text/html,x) [b](//c.example)</p>",
    "<b>x</b> &amp;": "<p>&lt;b&gt;x&lt;/b&gt; &amp;amp;</p>",
}

RENDER = """import(`${location.origin}/ui/markdown.js`).then(({ showMarkdown }) => TEXTS.map((text) => {
  const place = document.createElement('div');
  for (let end = 1; end <= text.length; end += STEP) showMarkdown(place, text.slice(0, end));
  showMarkdown(place, text);
  for (const one of place.querySelectorAll('*')) for (const { name } of [...one.attributes])
    if (name !== 'href') one.removeAttribute(name);
  return place.innerHTML;
}))"""


async def test_markdown() -> None:
    """Each construct becomes these elements, whether the text comes at once or character by character."""
    async with opened(chat(ScriptedModel([]))) as (_, page):
        for step in (1, 100_000):
            made = await page.js(RENDER.replace("TEXTS", json.dumps([*MARKDOWN])).replace("STEP", str(step)))
            assert dict(zip(MARKDOWN, made, strict=True)) == MARKDOWN


@pytest.mark.parametrize(
    "text", ["*", "`", "[", "> ", "- ", "**a ", "_a", "# ", "|", "| a |\n|-|\n", "~~~\n", "\\", "[a](", "`a`` "]
)
async def test_markdown_has_no_slow_texts(text: str) -> None:
    """A hundred thousand characters of one construct are shown in a moment."""
    async with opened(chat(ScriptedModel([]))) as (_, page):
        many = RENDER.replace("TEXTS", f"[{json.dumps(text)}.repeat({100_000 // len(text)})]").replace("STEP", "1e9")
        spent = await page.js(
            f"(async () => {{ const t = performance.now(); await {many}; return performance.now() - t; }})()"
        )
        assert spent < 5_000


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [320, 390, 1200])
async def test_it_fits(width: int, dark: bool) -> None:
    """Nothing is wider than a phone, even if words are long; contrast is at least 4.5 to 1, in light and dark."""
    table = "|" + "x|" * 40 + "\n|" + "-|" * 40 + "\n"
    wide = f"{'x' * 400} [{'y' * 200}](https://{'z' * 60}.example/) `code`\n\n```\n{'c' * 300}\n```\n\n{table}"
    model = ScriptedModel([[ModelChunk(thinking="x" * 300), wide, ToolUseBlock("t1", "refund", {"number": 7})]])
    async with opened(chat(model, FULL, tools=[refund]), width=width, height=700, dark=dark) as (_, page):
        await say(page, "y" * 300)
        await page.until(ASKS)
        await page.js("document.querySelectorAll('details').forEach(part => part.open = true)")
        assert await page.js("document.documentElement.scrollWidth") <= width
        assert await page.js("document.querySelector('main').scrollWidth <= document.querySelector('main').clientWidth")
        assert await page.js("document.querySelector('#send').getBoundingClientRect().bottom") <= 700
        assert await page.js(CONTRAST) == []
        assert page.problems == []


CONTRAST = """(() => {
  const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
  const rgb = (color) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data]; };
  const light = ([r, g, b]) => [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (e) => { for (; e; e = e.parentElement) { const c = rgb(getComputedStyle(e).backgroundColor);
    if (c[3] === 255) return c; } return [255, 255, 255]; };
  return ['h1', '#status', '.bubble', '.text p', '.text a', '.text a + small', '.text code', 'figcaption', 'figcaption button',
    'th', 'summary', '.tool bdi', '.thinking div', '.parts h4', '.parts pre', '.question', '.ask .main', '.ask .plain', '#new',
    '#sessions a', '.chip'].map((s) => { const e = document.querySelector(s);
      const [a, b] = [light(rgb(getComputedStyle(e).color)), light(ground(e))];
      return [s, (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05)]; }).filter(([, ratio]) => ratio < 4.5);
})()"""


async def test_a_screen_reader_and_a_keyboard_find_everything() -> None:
    """Every control has a name; new text is announced when it is complete; on a phone the list opens and closes."""
    async with opened(chat(ScriptedModel(replies), FULL, tools=[refund]), width=390) as (_, page):
        await say(page, "Refund it")
        await page.until(ASKS)
        await page.js("document.querySelector('#menu').focus()")
        await page.press("Enter")
        assert await page.js("document.activeElement.closest('#side') !== null")
        nodes = (await page.send("Accessibility.getFullAXTree"))["nodes"]
        roles = ("button", "link", "textbox", "combobox", "log", "group", "status")
        named = [
            (node["role"]["value"], node.get("name", {}).get("value", ""))
            for node in nodes
            if not node["ignored"] and node["role"]["value"] in roles
        ]
        nameless = {role for role, name in named if not name} - {"status", "group"}  # a folded part is a group
        assert nameless == set()
        assert {("log", "Conversation"), ("group", "Allow “refund”?"), ("textbox", "Your message")} <= set(named)
        await page.press("Escape")
        assert await page.js("document.activeElement.id") == "menu"
        assert await page.js("document.querySelector('#log').ariaBusy") == "false"
        assert page.problems == []
