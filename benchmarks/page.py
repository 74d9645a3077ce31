"""The inspector's page with 100,000 events: first paint, scrolling, searching, in a headless Chromium.

    python -m benchmarks.page [EVENTS]

Nothing of this is asserted: it depends on the machine, and on its load.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests" / "support"))

from browser import browser

from agentflow.serve.inspector import Inspector

EVENTS = 100_000
SCROLL = """
(async () => {
  const list = document.querySelector('.list');
  const times = [];
  const paint = () => new Promise(requestAnimationFrame);
  let last = await paint();
  for (let n = 1; n <= 300; n++) {
    list.scrollTop = (list.scrollHeight * n) / 300;
    const now = await paint();
    times.push(now - last);
    last = now;
  }
  times.sort((a, b) => a - b);
  return [times[150], times[284], times[299]];
})()
"""
PAINTED = "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(() => r(performance.now()))))"
ZOOM = SCROLL.replace(
    "list.scrollTop = (list.scrollHeight * n) / 300;",
    "document.dispatchEvent(new KeyboardEvent('keydown', { key: n % 30 < 15 ? '+' : '-' }));",
)


def write_log(path: Path, events: int) -> None:
    """A run of so many events: rounds of eight, with a tool."""
    call = {"kind": "call", "call": "c1", "run": "run_1", "session": "s", "agent": "ada", "model": "m", "time": 0.0}
    with path.open("w", encoding="utf-8") as file:

        def put(kind: str, **entry: object) -> None:
            file.write(json.dumps({"kind": kind, **entry}, separators=(",", ":")) + "\n")

        put("log", form="agentflow.run-log", version=1, writer="w", time=0.0)
        file.write(json.dumps(call) + "\n")
        for number in range(events // 8):
            at = {"call": "c1", "iteration": number + 1}
            time, use, said = number * 0.05, f"t{number}", f"m{number}"
            text = {"type": "text", "text": f"Round {number}: I look at page {number} and go on. "}
            asks = [text, {"type": "tool_use", "ref": use}]
            put("tool_use", ref=use, value={"id": use, "name": f"read_{number % 5}", "input": {"page": number}})
            put("message", ref=said, message={"role": "assistant", "id": said, "content": asks})
            result = {
                "tool_use_id": use,
                "name": f"read_{number % 5}",
                "content": "It says hello. " * 5,
                "state": "success",
            }
            put("tool_result", ref=use, value=result)
            fields: list[tuple[str, dict[str, object]]] = [
                ("PreReasoning", {"input_messages": {"keep": number, "add": [said]}, "model": "m"}),
                ("ReasoningChunk", {}),
                ("ReasoningChunk", {}),
                ("PostReasoning", {"reasoning_result": said, "usage": {"input_tokens": 50, "output_tokens": 9}}),
                ("PreToolRound", {"tool_uses": [use]}),
                ("PreActing", {"tool_use": use}),
                ("PostActing", {"tool_use": use, "original_tool_use": use, "tool_result": use, "duration_ms": 5}),
                ("PostToolRound", {"tool_uses": [use], "tool_results": [use]}),
            ]
            for step, (kind, values) in enumerate(fields):
                moment = {"seq": number * 8 + step, "time": time + step * 0.005}
                if kind == "ReasoningChunk":
                    put("chunks", **at, **moment, pieces=["Round ", "and on."][step - 1 : step], at=[0])
                else:
                    put("event", type=kind, **at, **moment, fields=values)
        put("event", type="CallEnded", call="c1", seq=events, time=events * 0.01, fields={})


async def measure(events: int) -> None:
    """Print the measurements."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "run.jsonl"
        write_log(log, events)
        print(f"{events:,} events, {log.stat().st_size / 1e6:.1f} MB")
        async with Inspector(log).serving() as link, browser() as chromium, chromium.page() as page:
            await page.goto(link)
            await page.until("document.querySelector('.runs a')")
            opens = "document.querySelector('.runs a').click(); performance.now()"
            began = await page.js(opens)
            await page.until("document.querySelector('main').dataset.ready === 'run'")
            shown = await page.js(PAINTED)
            print(f"first paint        {shown - began:6.0f} ms after the click (fetch, parse, lanes, list)")
            for name, script in (("scrolling", SCROLL), ("zooming", ZOOM)):
                half, most, worst = await page.js(script)
                print(f"{name:<18} {half:6.1f} ms a frame (95 %: {most:.1f}, worst {worst:.1f}); 16.7 is 60 a second")
            found = await page.js(
                "(async () => { const s = document.querySelector('#search'); const t = performance.now();"
                "s.value = 'page 12345 '; s.dispatchEvent(new Event('input'));"
                "while (document.querySelectorAll('.line').length > 20) await new Promise(r => setTimeout(r, 5));"
                "return performance.now() - t; })()"
            )
            print(f"the first search   {found:6.0f} ms, in slices of 8")


if __name__ == "__main__":
    asyncio.run(measure(int(sys.argv[1]) if len(sys.argv) > 1 else EVENTS))
