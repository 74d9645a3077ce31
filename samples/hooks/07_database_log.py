"""An asynchronous log to a database: the insert runs in a thread and does not block the event loop.

Alternatively, use `async def` with an asynchronous driver, or `@after_each_tool(in_thread=True)` on a plain function.
"""

from __future__ import annotations

import sqlite3

from agentflow import Agent, Mono, PostActing, ToolUseBlock, after_each_tool, threads, tool
from agentflow.testing import ScriptedModel

DATABASE = sqlite3.connect(":memory:", check_same_thread=False)


@after_each_tool
def log_to_database(event: PostActing) -> Mono[PostActing]:
    return Mono.from_callable(lambda: insert(event)).subscribe_on(threads()).then(Mono.just(event))


def insert(event: PostActing) -> None:
    row = (event.run_id, event.tool_use.name, event.tool_result.state)
    with DATABASE:
        DATABASE.execute("insert into tools values (?, ?, ?)", row)


# ---- the offline run


@tool
async def ring(times: int) -> str:
    """Ring the bell."""
    return "ding " * times


def main() -> None:
    DATABASE.execute("create table tools (run, name, state)")
    calls = [ToolUseBlock("t1", "ring", {"times": 2}), ToolUseBlock("t2", "ring", {"times": "often"})]
    agent = Agent("bell", ScriptedModel([calls, "Rung."]), tools=[ring], hooks=[log_to_database])
    print(agent.call("Ring!").block())
    print(DATABASE.execute("select name, state from tools").fetchall())
    DATABASE.close()


if __name__ == "__main__":
    main()
