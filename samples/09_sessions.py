"""Sessions: conversations in a SQLite file, listed, continued by another process, forked, exported and imported.

The same code works with a PostgreSQL server: `SqlStore("postgresql+psycopg://user:password@host/database")`.
Needs `agentflow-hooks[sql]`.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path

from agentflow import Agent, ModelRequest
from agentflow.state import SqlStore
from agentflow.testing import ScriptedModel

CITIES = {"north": "Oslo", "south": "Palermo", "sea": "Brest"}


def guide(request: ModelRequest) -> str:
    """Answer from the earlier messages."""
    said = [msg.text for msg in request.messages if msg.role == "user"]
    known = [CITIES[word] for text in said for word in text.split() if word in CITIES]
    return f"{known[-1]}." if known else "Where to?"


def agent_on(store: SqlStore) -> Agent:
    return Agent("guide", ScriptedModel(guide), store=store)


async def show(store: SqlStore) -> None:
    for info in sorted(await store.sessions()):
        print(f"  {info.id}: {info.status}, {info.version} facts")


async def main_async(url: str) -> None:
    print("Monday")
    async with SqlStore(url) as store:
        agent = agent_on(store)
        await agent.call("Hello", session="ann")
        first = await agent.call("To the north", session="ann")
        print("  ann:", first)
        print("  bob:", await agent.call("To the south", session="bob"))

    print("Tuesday, in another process")
    async with SqlStore(url) as store:
        agent = agent_on(store)
        print("  ann:", await agent.call("Where was it again?", session="ann"))

        await store.fork("ann", "ann-2", at=first.run_id)  # as it was on Monday
        print("  ann-2:", await agent.call("Rather to the sea", session="ann-2"))
        print("  ann:", len(agent.session("ann").messages), "messages, untouched")

        text = json.dumps(await store.export("bob"))
        await store.delete("bob")
        await store.import_(json.loads(text), "robert")
        print("  robert:", await agent.call("And now?", session="robert"))
        await store.rename("ann-2", "the sea")
        print("The store")
        await show(store)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main_async(f"sqlite:///{Path(folder) / 'agentflow.db'}"))


if __name__ == "__main__":
    main()
