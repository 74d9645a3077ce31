"""Redaction over restarts: what is encrypted with the session, what a store can read, and what the page says about
both.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography.fernet import Fernet
from eventlog import use
from loguru import logger
from pydantic import TypeAdapter

from agentflow import Agent, Answer, Approve, Hook, Msg, on, tool
from agentflow.errors import UsageError
from agentflow.plugins.approval import Approval
from agentflow.plugins.redaction import Redaction
from agentflow.plugins.redaction.detectors import DETECTORS
from agentflow.plugins.redaction.seal import KEYS_VARIABLE, Seal
from agentflow.plugins.redaction.text import Scanner
from agentflow.plugins.redaction.vault import Vault
from agentflow.state import SqlStore
from agentflow.testing import ScriptedModel
from agentflow.testing.faults import Crash, ProcessDied
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.events import PreActing
from agentflow.vocabulary.facts import (
    CallOpened,
    CallResumed,
    Fact,
    Injected,
    Reasoned,
    RoundSuspended,
    StateKept,
    ToolDecided,
    ToolFinished,
)
from agentflow.vocabulary.messages import TextBlock, ThinkingBlock, ToolUseBlock
from agentflow.vocabulary.ports.memory_store import MemoryStore
from agentflow.vocabulary.ports.store import Store
from agentflow.vocabulary.verdicts import Suspend

MAIL = "ada@example.com"
KEY2 = "ghp_abcdefghijklmnopqrstuvwxyz0123456789"
PAGE = Path(__file__).parents[2] / "docs/plugins/redaction.md"


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys of the environment have no effect."""
    monkeypatch.delenv(KEYS_VARIABLE, raising=False)


@contextmanager
def logged(lines: list[str]) -> Iterator[None]:
    """What the library logs meanwhile."""
    sink = logger.add(lines.append, format="{message}")
    try:
        yield
    finally:
        logger.remove(sink)


def bytes_in(folder: Path) -> bytes:
    return b"".join(file.read_bytes() for file in folder.iterdir())


def key() -> str:
    return Fernet.generate_key().decode()


class Clerk:
    """An agent that writes mails after an approval; each object stands for a process."""

    def __init__(self, store: Store, *script: Any, wrap: bool = True, approve: bool = True, **options: Any) -> None:
        self.sent: list[str] = []

        @tool(idempotent=True)
        async def send_mail(to: str) -> str:
            """Send a mail."""
            self.sent.append(to)
            return f"sent to {to}"

        self.redaction = Redaction(**options)
        self.model = ScriptedModel(script[0] if callable(script[0]) else list(script))
        self.agent = Agent(
            "clerk",
            self.model,
            tools=[send_mail],
            hooks=[self.redaction, *([Approval(suspend=True)] if approve else [])],
            store=self.redaction.store(store) if wrap else store,
        )


WRITE = use("t1", "send_mail", to="<email-1>")


# ---- approvals


@pytest.mark.parametrize("stored", ["redacted", "original"])
@pytest.mark.parametrize("wrap", [True, False], ids=["wrapped", "plain"])
async def test_what_was_approved_runs_in_another_process(tmp_path: Path, wrap: bool, stored: str) -> None:
    """The approver reads what the tool will get, the tool gets it, and a wrapped store has nothing readable."""
    url, keys = f"sqlite:///{tmp_path / 'sessions.db'}", key()
    async with SqlStore(url) as store:
        reply = await Clerk(store, WRITE, wrap=wrap, stored=stored, keys=keys).agent.call(
            f"Write to {MAIL}", session="s"
        )
        assert reply.pending[0].request["input"] == {"to": MAIL}
    async with SqlStore(url) as store:
        other = Clerk(store, "<email-1> has it.", wrap=wrap, stored=stored, keys=keys)
        before = await other.agent.history("s")
        pending = other.agent.session("s").pending[0]
        assert (pending.request["input"], dict(pending.tool_use.input if pending.tool_use else {})) == (
            {"to": MAIL},
        ) * 2
        assert before[0].text == (f"Write to {MAIL}" if stored == "original" else "Write to <email-1>")
        assert (await other.agent.resume("s", {"t1": Approve()})).text == f"{MAIL} has it."
    assert other.sent == [MAIL]
    assert MAIL not in repr([list(request.messages) for request in other.model.requests])
    assert (MAIL.encode() in bytes_in(tmp_path)) is not wrap
    async with SqlStore(url) as store:  # words that readers saw are as they saw them, in a third process too
        third = Clerk(store, "Again <email-1>.", wrap=wrap, stored=stored, keys=keys)
        assert (await third.agent.history("s"))[-1].text == f"{MAIL} has it."
        assert (await third.agent.call("And again?", session="s")).text == f"Again {MAIL}."


@pytest.mark.parametrize("wrap", [True, False], ids=["wrapped", "plain"])
async def test_without_keys_a_call_of_an_earlier_process_is_refused(wrap: bool) -> None:
    """A tool never gets a placeholder instead of a value, and the log has the setting to make."""
    said: list[str] = []
    store = MemoryStore()
    await Clerk(store, WRITE, wrap=wrap).agent.call(f"Write to {MAIL}", session="s")
    other = Clerk(store, "Sorry.", wrap=wrap)
    with logged(said):
        await other.agent.resume("s", {"t1": Approve()})
    assert other.sent == []
    assert [line for line in said if KEYS_VARIABLE in line and "keys=" in line]


@pytest.mark.parametrize("stored", ["redacted", "original"])
async def test_placeholders_mean_the_same_after_a_restart(stored: str) -> None:
    """The model may name in one process what a tool found in an earlier one, without any approval."""
    store, keys = MemoryStore(), key()
    one = Clerk(store, WRITE, "Shall I write to <email-1>?", approve=False, stored=stored, keys=keys, wrap=False)
    await one.agent.call(f"{MAIL} ordered", session="s")
    two = Clerk(
        store, use("t2", "send_mail", to="<email-1>"), "Done.", approve=False, stored=stored, keys=keys, wrap=False
    )
    await two.agent.call("Yes, and tell bob@example.com", session="s")
    assert two.sent == [MAIL]
    texts = [message.text for message in two.model.requests[0].messages]
    assert [texts[0], texts[-1]] == ["<email-1> ordered", "Yes, and tell <email-2>"]


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("wrap", [True, False], ids=["wrapped", "plain"])
async def test_a_crash_anywhere_loses_no_value(wrap: bool, sealed: bool) -> None:
    """However far the process came, the next one gives the tool the address; without keys that, or nothing."""
    keys, died = key() if sealed else None, 0

    def brain(request: Any) -> Any:
        return "Done <email-1>." if request.messages[-1].role == "tool" else WRITE

    for at in range(1, 40):
        crash, inner = Crash(at=at), MemoryStore()
        clerk = Clerk(crash.store(inner), brain, wrap=wrap, approve=False, keys=keys)
        try:
            await clerk.agent.call(f"Write to {MAIL}", session="s")
            break
        except ProcessDied:
            died += 1
        other = Clerk(inner, brain, wrap=wrap, approve=False, keys=keys)
        if await other.agent.unfinished():
            await other.agent.resume("s")
            assert set(clerk.sent + other.sent) | ({MAIL} if not sealed else set()) == {MAIL}
            assert not sealed or other.agent.session("s").messages[-1].text == f"Done {MAIL}."
    assert died > 4


async def test_what_a_tool_has_found_is_stored_with_the_fact_that_speaks_of_it() -> None:
    """Not only at the end of the round: a process that dies between two tools has kept the value of the first."""
    inner, keys = MemoryStore(), key()

    @tool
    async def find() -> str:
        """Find."""
        return MAIL

    @tool
    async def die() -> str:
        """Die."""
        raise ProcessDied("here")

    redaction = Redaction(keys=keys)
    model = ScriptedModel([[use("t1", "find"), use("t2", "die")]])
    agent = Agent("clerk", model, tools=[find, die], hooks=[redaction], store=redaction.store(inner))
    with pytest.raises(ProcessDied):
        await agent.call("go", session="s")
    facts = inner.load("s")
    finished = next(n for n, fact in enumerate(facts) if isinstance(fact, ToolFinished))
    vault = next(fact for fact in reversed(facts[:finished]) if isinstance(fact, StateKept))
    ((_, data),) = vault.values.items()
    assert MAIL in Seal(keys).open(data["sealed"])[0]
    assert MAIL not in repr(facts)


async def test_what_is_first_seen_on_its_way_into_the_store_is_sealed_too() -> None:
    """A guard's question may have a value that is in no message: the approver can read it in another process."""

    @on(PreActing, guard=True)
    async def ask(event: PreActing) -> Any:
        return Suspend("may eve@example.com read it?") if event.approval is None else None

    def make(*script: Any) -> Agent:
        redaction = Redaction(keys=keys)
        return Agent("a", ScriptedModel(script), hooks=[redaction, ask], store=redaction.store(store))

    store, keys = MemoryStore(), key()
    await make(use("t1", "look")).call("go", session="s")
    assert "eve@" not in repr(store.load("s"))
    other = make("Done.")
    await other.history("s")
    assert other.session("s").pending[0].request == "may eve@example.com read it?"


# ---- keys


async def test_a_new_key_opens_nothing_and_an_old_one_beside_it_does() -> None:
    """Rotation: without the old key there is an error, and nothing is lost; with it, stored values are encrypted with
    the new one.
    """
    store, old, new = MemoryStore(), key(), key()
    await Clerk(store, WRITE, keys=old).agent.call(f"Write to {MAIL}", session="s")
    before = repr(store.load("s"))
    with pytest.raises(UsageError, match=r"no key opens .* keys=\[new, old\]"):
        await Clerk(store, "Done.", keys=new).agent.resume("s", {"t1": Approve()})
    assert repr(store.load("s")) == before
    both = Clerk(store, "Done.", keys=[new, old])
    await both.agent.resume("s", {"t1": Approve()})
    assert both.sent == [MAIL]
    last = Clerk(store, use("t2", "send_mail", to="<email-1>"), "Done.", approve=False, keys=new)
    await last.agent.call("Again", session="s")
    assert last.sent == [MAIL]


async def test_keys_come_from_the_environment_or_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """A function is called once, and again if none of its keys fits; the variable has several, the newest first."""
    store, old, new = MemoryStore(), key(), key()
    monkeypatch.setenv(KEYS_VARIABLE, old)
    await Clerk(store, WRITE).agent.call(f"Write to {MAIL}", session="s")
    asked: list[int] = []

    def keys() -> list[str]:
        asked.append(1)
        return [new] if len(asked) == 1 else [new, old]

    other = Clerk(store, "Done.", keys=keys)
    assert asked == []
    await other.agent.resume("s", {"t1": Approve()})
    assert (other.sent, len(asked)) == ([MAIL], 2)
    monkeypatch.setenv(KEYS_VARIABLE, f"{key()}, {new}")
    last = Clerk(store, use("t2", "send_mail", to="<email-1>"), "Done.", approve=False)
    await last.agent.call("Again", session="s")
    assert last.sent == [MAIL]


async def test_a_process_without_keys_keeps_what_is_sealed() -> None:
    """It cannot open it, and hands it on: the next process that has the keys finds it."""
    store, keys = MemoryStore(), key()
    await Clerk(store, "Hello <email-1>.", keys=keys).agent.call(f"I am {MAIL}", session="s")
    await Clerk(store, "Hello.").agent.call("I am eve@example.com", session="s")
    last = Clerk(store, use("t2", "send_mail", to="<email-1>"), "Done.", approve=False, keys=keys)
    await last.agent.call("Write", session="s")
    assert last.sent == [MAIL]


@pytest.mark.parametrize("wrong", ["", "short", b"", [], [7], "x" * 44, lambda: None, lambda: "short"])
async def test_what_is_no_key_is_refused(wrong: Any) -> None:
    """When the hook is built, or with the first event where a function gives it; the text is not repeated."""
    with pytest.raises(UsageError, match=r"invalid Fernet key.*Fernet\.generate_key") as caught:
        await Clerk(MemoryStore(), "Hello.", keys=wrong).agent.call(f"I am {MAIL}")
    assert "short" not in str(caught.value)


async def test_a_function_that_fails_ends_the_call_before_anything_is_stored() -> None:
    """If the keys are unavailable, the call does not continue without them."""

    def keys() -> str:
        raise ConnectionError("the key service is away")

    store = MemoryStore()
    with pytest.raises(ConnectionError):
        await Clerk(store, "Hello.", keys=keys).agent.call(f"I am {MAIL}", session="s")
    assert list(store.load("s")) == []


async def test_what_is_sealed_is_written_when_it_changes_only() -> None:
    """Calls that learn nothing write nothing, and leave the sealed text alone."""
    store, keys = MemoryStore(), key()
    clerk = Clerk(store, lambda request: "Hello <email-1>.", keys=keys)
    for _ in range(3):
        await clerk.agent.call(f"I am {MAIL}", session="s")
    other = Clerk(store, lambda request: "Hello <email-1>.", keys=keys)
    await other.agent.call(f"I am {MAIL}", session="s")
    assert sum(isinstance(fact, StateKept) for fact in store.load("s")) == 1


async def test_a_thought_with_a_secret_goes_back_unchanged_after_a_restart() -> None:
    """A provider that signs thoughts wants them as they were, also from another process; readers never see the secret."""
    store, keys = MemoryStore(), key()
    secret = [ModelChunk(thinking="key " + KEY2), ModelChunk(signature="seal-1")]
    await Clerk(store, [*secret, "One."], wrap=False, keys=keys).agent.call("go", session="s")
    other = Clerk(store, "Two.", wrap=False, keys=keys)
    await other.agent.call("on", session="s")
    (thought,) = [b for m in other.model.requests[0].messages for b in m.content if isinstance(b, ThinkingBlock)]
    assert (thought.text, thought.signature) == (f"key {KEY2}", "seal-1")
    assert KEY2 not in repr((store.load("s"), list(await other.agent.history("s"))))


async def test_a_thought_with_a_known_value_goes_back_unchanged_after_a_restart() -> None:
    """Also if an earlier call has stored the value, so that the thought alone is new."""
    store, keys = MemoryStore(), key()
    thinking = [ModelChunk(thinking=f"mail {MAIL}"), ModelChunk(signature="seal-1")]
    clerk = Clerk(store, "Hello.", [*thinking, "Two."], wrap=False, keys=keys)
    for text in (f"I am {MAIL}", "And?"):
        await clerk.agent.call(text, session="s")
    other = Clerk(store, "Three.", wrap=False, keys=keys)
    await other.agent.call("So?", session="s")
    thoughts = [b for m in other.model.requests[0].messages for b in m.content if isinstance(b, ThinkingBlock)]
    assert [(thought.text, thought.signature) for thought in thoughts] == [(f"mail {MAIL}", "seal-1")]


async def test_what_only_the_model_wrote_stays_hidden_if_a_later_process_restores() -> None:
    """`restore=False` before, now True: readers get the values of users and tools, and none that the model made up."""
    store, keys = MemoryStore(), key()
    first = Clerk(store, f"Your key: {KEY2}.", restore=False, keys=keys, wrap=False)
    await first.agent.call(f"I am {MAIL}", session="s")
    other = Clerk(store, "Again, <email-1>: <secret-1>.", keys=keys, wrap=False)
    assert (await other.agent.call("Again?", session="s")).text == f"Again, {MAIL}: <secret-1>."


def test_a_vault_as_data() -> None:
    """Counters alone without a seal; with one, counters and a text that only the key opens. Other data is refused."""
    adapter, scanner, seal = TypeAdapter(Vault), Scanner(DETECTORS), Seal(key())
    vault = Vault()
    vault.use(seal)
    vault.hide(MAIL, "email", scanner, by_model=False)
    assert vault.unsaved
    data = json.loads(adapter.dump_json(vault))
    assert (vault.unsaved, data["counters"], json.loads(adapter.dump_json(vault)) == data) == (
        False,
        {"email": 1},
        True,
    )
    again = adapter.validate_python(data)
    again.use(seal)
    assert (again.original("<email-1>"), again.unsaved) == (MAIL, False)
    for wrong in (7, [], {"email": "x"}, {"counters": 1, "sealed": ""}, {"counters": {}, "sealed": 7}):
        with pytest.raises(ValueError, match="validation error"):
            adapter.validate_python(wrong)


# ---- what the page says


ROWS: dict[str, Callable[[Fact], Any]] = {
    "input": lambda fact: fact.messages if isinstance(fact, CallOpened) else None,
    "tool results": lambda fact: fact.result if isinstance(fact, ToolFinished) else None,
    "tool calls of the model": lambda fact: parts(fact, ToolUseBlock),
    "text of the model": lambda fact: parts(fact, TextBlock),
    "arguments of tools": lambda fact: fact.tool_use if isinstance(fact, ToolFinished | ToolDecided) else None,
    "pending requests of a suspended call": lambda fact: fact.pending if isinstance(fact, RoundSuspended) else None,
    "decisions of people": lambda fact: fact.decisions if isinstance(fact, CallResumed) else None,
    "messages injected by hooks": lambda fact: fact.messages if isinstance(fact, Injected) else None,
    "state of hooks and tools": lambda fact: fact.values if isinstance(fact, StateKept) else None,
}


def parts(fact: Fact, kind: type) -> Any:
    return [block for block in fact.message.content if isinstance(block, kind)] if isinstance(fact, Reasoned) else None


@dataclass
class Notes:
    """State of a tool."""

    text: str = ""


async def kept(*, stored: str, wrap: bool, keys: str | None) -> dict[str, str]:
    """What of each row is in a store after a session in which an address went everywhere."""

    @tool
    async def send_mail(to: str) -> str:
        """Send a mail."""
        return f"sent to {to}"

    @on(PreActing, guard=True)
    async def ask(event: PreActing) -> Any:
        event.context.session_state[Notes].text = f"asked about {MAIL}"
        event.context.inject(f"note {MAIL}")
        return Suspend(f"mail to {MAIL}") if event.approval is None and event.tool_use.id == "t2" else None

    store, redaction = MemoryStore(), Redaction(stored=stored, keys=keys)  # pyright: ignore[reportArgumentType]
    calls: Sequence[Any] = [WRITE, ["Now <email-1>.", use("t2", "send_mail", to="<email-1>")], "Done <email-1>."]
    hooks: list[Hook] = [redaction, ask]
    place = redaction.store(store) if wrap else store
    agent = Agent("clerk", ScriptedModel(calls), tools=[send_mail], hooks=hooks, store=place)
    await agent.call(Msg.user(f"Write to {MAIL}"), session="s")
    await agent.resume("s", {"t2": Answer(f"sent by hand to {MAIL}")})
    facts = store.load("s")
    found: dict[str, str] = {}
    for row, pick in ROWS.items():
        told = repr([part for fact in facts if (part := pick(fact)) is not None])
        assert (MAIL in told) != ("<email-1>" in told), row  # one or the other: the row is there, and means one thing
        found[row] = "originals" if MAIL in told else "placeholders"
    return found


@pytest.mark.parametrize("sealed", [False, True])
async def test_the_page_says_what_is_kept_where(sealed: bool) -> None:
    """Every cell of the table, with and without keys: what the store has of a run in which an address was everywhere."""
    lines = [line.strip("|").split("|") for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    table = {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in lines if len(cells) == 4}
    assert table.pop("Data") == ["In the session", 'With `stored="original"`', "In `redaction.store(store)`"]
    keys = key() if sealed else None
    columns = [
        await kept(stored="redacted", wrap=False, keys=keys),
        await kept(stored="original", wrap=False, keys=keys),
        await kept(stored="redacted", wrap=True, keys=keys),
    ]
    assert await kept(stored="original", wrap=True, keys=keys) == columns[2]
    assert table == {row: [column[row] for column in columns] for row in ROWS}
