"""`PostgresIndex` and `PostgresMemory`: documents and memories in a PostgreSQL database, by terms and with pgvector."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import psycopg
import pytest
from postgres import Postgres

from agentflow import Agent
from agentflow.errors import StoreError, UsageError
from agentflow.plugins.memory import Memory, PostgresMemory
from agentflow.plugins.retrieval import PostgresIndex, Retrieve
from agentflow.testing import ScriptedModel, TermEmbedder, check_index_async, check_memory_async

SYNONYMS = {"vacation": "holidays", "dining": "canteen", "feline": "cat"}


@pytest.fixture
def url(postgres: Postgres) -> Iterator[str]:
    """An empty database of a server with pgvector."""
    with postgres.database() as made:
        try:
            postgres.execute("CREATE EXTENSION vector", made.rpartition("/")[2])
        except psycopg.Error as error:
            pytest.skip(f"this PostgreSQL has no pgvector: {error}")
        yield made


@pytest.fixture
async def index(url: str) -> AsyncIterator[PostgresIndex]:
    """An index with vectors."""
    made = PostgresIndex(url, TermEmbedder(synonyms=SYNONYMS))
    yield made
    await made.close()


@pytest.mark.parametrize("embedder", [None, TermEmbedder()], ids=["terms", "vectors"])
async def test_conformance(url: str, embedder: TermEmbedder | None) -> None:
    """Both pass the suites of their ports, with and without vectors."""
    index, bank = PostgresIndex(url, embedder), PostgresMemory(url, embedder)
    for report in (await check_index_async(index), await check_memory_async(bank)):
        assert report.clean, str(report)
    await index.close()
    await bank.close()


async def test_meaning(index: PostgresIndex) -> None:
    """A passage is found without a common term and cited, and a changed document embeds its new passages only."""
    text = "Holidays: thirty days a year.\n\n" + "Filler. " * 150 + "\n\nThe canteen serves lunch at noon."
    assert await index.add("handbook.md", text) == 2
    model = ScriptedModel(["Thirty days [handbook.md:1]."])
    reply = await Agent("a", model, hooks=[Retrieve(index, passages=1)]).call("vacation?")
    assert [one.title for one in reply.citations] == ["handbook.md:1"]
    embedder = index._embedder  # pyright: ignore[reportPrivateUsage]
    assert isinstance(embedder, TermEmbedder)
    embedder.texts.clear()
    await index.add("handbook.md", text.replace("noon", "one"))
    assert [len(one) > 20 for one in embedder.texts] == [True]
    assert [one.line for one in await index.search("dining", 1)] == [5]


async def test_the_nearest_of_many(index: PostgresIndex, postgres: Postgres, url: str) -> None:
    """Documents that are added at once are all found, and the vectors have one index, of their size."""
    await asyncio.gather(*(index.add(f"{n}.txt", f"The file number{n} has words{n % 7}.") for n in range(60)))
    sql = "SELECT indexdef FROM pg_indexes WHERE indexname LIKE '%nearest'"
    made = [definition for (definition,) in postgres.execute(sql, url.rpartition("/")[2])]
    assert [("hnsw" in one, "vector(256)" in one) for one in made] == [(True, True)]
    assert [one.source for one in await index.search("number42", 1)] == ["42.txt"]


async def test_memories_of_another_user(url: str) -> None:
    """A memory is found by its meaning, among those of its user only, and the others are not even embedded."""
    embedder = TermEmbedder(synonyms=SYNONYMS)
    bank = PostgresMemory(url, embedder)
    secret = await bank.add("bob", "Bob has a cat called Jim.'; DROP TABLE agentflow_memories; --", "a", 0.0)
    await bank.add("ada", "Ada has a cat called Tom.", "a", 0.0)
    model = ScriptedModel(["Tom."])
    await Agent("a", model, hooks=[Memory(bank, user="ada")]).call("feline' OR owner = 'bob?")
    note = model.requests[0].messages[-1].text
    assert ("Tom" in note, "Jim" in note, await bank.forget("ada", secret.id)) == (True, False, 0)
    assert [one for one in embedder.texts if "Bob" in one] == []
    assert [one.text for one in await bank.all("bob")] == [secret.text]
    await bank.close()


@pytest.mark.parametrize("other", [TermEmbedder(name="other"), TermEmbedder(size=8)], ids=["model", "size"])
async def test_another_model(index: PostgresIndex, url: str, other: TermEmbedder) -> None:
    """Vectors of another model or size are refused; `drop_vectors` changes to it."""
    await index.add("a.txt", "Lunch at noon.")
    second = PostgresIndex(url, other)
    for work in (second.search("lunch", 1), second.add("b.txt", "Dinner at eight.")):
        with pytest.raises(StoreError, match=r"has vectors of 'terms' with 256 numbers, .* drop_vectors\(\)"):
            await work
    await second.drop_vectors()
    assert [one.source for one in await second.search("lunch", 1)] == ["a.txt"]
    await second.close()


async def test_a_lost_connection(index: PostgresIndex, postgres: Postgres) -> None:
    """The work during which a connection is lost fails with a `StoreError`; the next one connects again."""
    await index.add("a.txt", "Lunch at noon.")
    postgres.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname LIKE 'test%'")
    with pytest.raises(StoreError, match="agentflow_passages in PostgresIndex"):
        await index.search("lunch", 1)
    assert [one.source for one in await index.search("lunch", 1)] == ["a.txt"]


async def test_what_is_refused(url: str) -> None:
    """Texts that PostgreSQL cannot hold, and a server that does not answer, are a `StoreError` without the password."""
    index = PostgresIndex(url)
    for text in ("a\x00b", "\ud800"):
        with pytest.raises(StoreError, match="cannot be used"):
            await index.add("a.txt", text)
    await index.close()
    with pytest.raises(StoreError, match="cannot be used") as caught:
        await PostgresMemory("postgresql://ada:secret@127.0.0.1:1/x").all("ada")
    assert "secret" not in str(caught.value)
    with pytest.raises(UsageError, match="max_length=10"):
        PostgresIndex(url, max_length=10)
    with pytest.raises(UsageError, match="source=''"):
        await index.add(" ", "x")
