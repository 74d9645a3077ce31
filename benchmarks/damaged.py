"""Damaged documents: everything that reads a file or a stored value reads thousands of them, and must report the problem.

    python -m benchmarks.damaged                 # 20,000 documents, all loaders, all four commands
    python -m benchmarks.damaged --count 500 --seed 7
    python -m benchmarks.damaged --only 7:123    # one document again; it is left beside, to be looked at

A document is a real one (a run log, a saved session, a fact, an agent ...) with one to three changes: bytes, lines or JSON
values that are lost, repeated, exchanged or something else. Its reader must finish with a result or an error
of agentflow's own; a traceback or more than `LIMIT` seconds is a finding.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from click.testing import CliRunner
from loguru import logger

from agentflow import (
    Agent,
    Approve,
    Deny,
    Hook,
    MemoryStore,
    ModelChunk,
    Msg,
    PostActing,
    PostCall,
    PreActing,
    PreReasoning,
    Suspend,
    ToolUseBlock,
    Turn,
    Usage,
    tool,
)
from agentflow.errors import AgentFlowError
from agentflow.loop.session import Session
from agentflow.mcp.config import read_config
from agentflow.recording import read_lines
from agentflow.recording.recorder import Recorder, export_log
from agentflow.serve.inspector.logs import Logs
from agentflow.terminal.cli.main import cli
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.messages import Pending
from agentflow.vocabulary.saving.codec import fact_from_json, fact_to_json, msg_from_dict, verdict_from_dict

__all__ = ["LIMIT", "Finding", "agent", "documents", "fuzz", "mutated"]

LIMIT = 30.0
"""Seconds that one document may take in one reader."""


# ---- the real ones


@tool(type="read")
async def look(n: int) -> str:
    """Look."""
    if n == 3:
        raise ValueError("nothing there")
    return f"looked at {n}"


@tool(type="research")
async def count_up(n: int) -> Any:
    """Count."""
    for number in range(n):
        yield number


@tool
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


class Rules(Hook):
    """Decides, changes and suspends."""

    def on_event(self, event: Any) -> Any:
        """Have a hand in everything."""
        match event:
            case PreReasoning():
                event.input_messages = [*event.input_messages, Msg.user("Be kind.", id="kind")]
            case PreActing(tool_use=ToolUseBlock(name="pay"), approval=None):
                return Suspend({"may I": event.tool_use.input.get("cents")})
            case PreActing(tool_use=ToolUseBlock(name="look", input={"n": 9})):
                return Deny("not that one")
            case PostActing() if "7" in event.tool_result.text:
                event.tool_result = replace(event.tool_result, content="seven")
            case PostCall(outcome="completed"):
                event.final_message = Msg.assistant(f"{event.final_message.text}!", id=event.final_message.id)
            case _:
                pass
        return None


def script() -> list[Any]:
    """The model's replies."""
    return [
        [
            ModelChunk("Let "),
            ModelChunk("me. ", usage=Usage(input_tokens=12, output_tokens=3, cost=0.002)),
            *[ToolUseBlock(f"t{n}", "look", {"n": n}) for n in (1, 3, 7, 9)],
            ToolUseBlock("c", "count_up", {"n": 3}),
        ],
        [ToolUseBlock("h", "helper", {"message": "help"}), ToolUseBlock.from_json("b", "look", "{")],
        [ToolUseBlock("p", "pay", {"cents": 5})],
        ["All ", "done."],
    ]


def new_agent(*hooks: Hook, store: Any = None) -> Agent[Any]:
    """The agent of the recorded runs."""
    helper = Agent("helper", ScriptedModel(["I help."]))
    model = ScriptedModel(script())
    return Agent(
        "a", model, tools=[look, count_up, pay, helper], system="Be brief.", hooks=[Rules(), *hooks], store=store
    )


agent = new_agent()
"""What `agentflow replay` is given."""


async def _recorded(folder: Path) -> dict[str, bytes]:
    """Run logs, sessions, facts."""
    store = MemoryStore()
    loud, quiet = Recorder(folder / "loud.jsonl"), Recorder(folder / "quiet.jsonl", short=0)
    mine = new_agent(loud, quiet, store=store)
    waits = await mine.call("Hello", session="s")
    halfway = json.dumps(await store.export("s"))
    await mine.resume(decisions={waits.pending[0].id: Approve()}, session="s")
    loud.close()
    quiet.close()
    facts = store.load("s")
    found = {
        "log recorded": (folder / "loud.jsonl").read_bytes(),
        "log without content": (folder / "quiet.jsonl").read_bytes(),
        "log of facts": "\n".join(await export_log(store, "s")).encode(),
        "session": json.dumps(await store.export("s")).encode(),
        "session that waits": halfway.encode(),
        "pending": json.dumps(waits.pending[0].to_dict()).encode(),
    }
    for number, fact in enumerate(facts):
        found[f"fact {number}"] = fact_to_json(fact).encode()
    return found


def documents() -> dict[str, bytes]:
    """Real documents by kind; the first word names the reader."""
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(_recorded(Path(folder)))
    found["verdict"] = b'{"verdict": "deny", "reason": "no"}'
    found["verdict with messages"] = (
        b'{"verdict": "again", "form": "messages", "messages": [{"role": "user", "content": []}]}'
    )
    found["message"] = Msg.user("Hi").to_json().encode()
    found["agent"] = Agent("a", "openai/gpt-5", tools=[look], system="Be brief.").to_json().encode()
    found["turn"] = Turn(look, {"n": 1}).to_json().encode()
    found["config"] = b'{"mcpServers": {"files": {"command": "npx", "args": ["-y"], "env": {"A": "b"}}}}'
    return found


# ---- damage

_VALUES: tuple[Any, ...] = (
    *(
        None,
        True,
        False,
        0,
        -1,
        1,
        2**63,
        10**30,
        0.5,
        -1e308,
        1e15,
        "",
        "x",
        "\x00",
        "☂",
        "../../etc/passwd",
        "<b>",
        "#",
    ),
    *([], {}, [None], {"ref": "t1"}, {"keep": 99}, {"add": ["x"]}, {"type": "text"}, {"message": "m"}, [[[[]]]]),
)
_TEXTS = (
    b"NaN",
    b"1e999",
    b"-Infinity",
    b"[" * 500,
    b'{"a":' * 300,
    b'"\\ud800"',
    b"9" * 5000,
    b"\xff\xfe",
    b"\x00" * 40,
)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A document with one to three changes."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        data = rng.choice((_bytes, _lines, _json, _json, _json, _json))(data, rng)
    return data


def _bytes(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data) + 1)
    size = rng.choice((1, 1, 2, 10, 200))
    match rng.randrange(5):
        case 0:
            return data[:at] + data[at + size :]
        case 1:
            return data[:at]
        case 2:
            return data[:at] + rng.choice(_TEXTS) + data[at:]
        case 3:
            return data[:at] + bytes(rng.randrange(256) for _ in range(size)) + data[at + size :]
        case _:
            return data[:at] + data[max(0, at - size) : at] + data[at:]


def _lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            del lines[one]
        case 1:
            lines.insert(other, lines[one])
        case 2:
            lines[one], lines[other] = lines[other], lines[one]
        case 3:
            del lines[min(one, other) : max(one, other)]
        case _:
            lines[one] = rng.choice(_TEXTS)
    return b"\n".join(lines)


def _json(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    n = rng.randrange(len(lines))
    try:
        whole = json.loads(lines[n])
        other = json.loads(lines[rng.randrange(len(lines))])
    except (ValueError, RecursionError):
        return data
    places = list(_places(whole))
    if not places:
        return data
    holder, key = rng.choice(places)
    match rng.randrange(6):
        case 0:
            del holder[key]
        case 1 if type(key) is str:
            holder[rng.choice(("x", "ref", "type", "kind", "call"))] = holder.pop(key)
        case 2:
            theirs, place = rng.choice(list(_places(other)) or [({"x": None}, "x")])
            holder[key] = theirs[place]
        case 3:
            holder[key] = [holder[key]]
        case _:
            holder[key] = rng.choice(_VALUES)
    lines[n] = json.dumps(whole, separators=(",", ":")).encode()
    if rng.random() < 0.05:
        lines[n] = lines[n].replace(b"null", rng.choice(_TEXTS), 1)
    return b"\n".join(lines)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every value in it, as its container and its key there."""
    if not isinstance(value, dict | list):
        return
    held = cast("dict[Any, Any]", value if isinstance(value, dict) else dict(enumerate(cast("list[Any]", value))))
    for key, inner in held.items():
        yield value, key
        yield from _places(inner)


# ---- who reads them


def _session(data: bytes) -> None:
    Session.from_json(data)
    try:
        asyncio.run(MemoryStore().import_(json.loads(data)))
    except (ValueError, RecursionError) as error:
        raise AgentFlowError("the caller's own parser") from error


def _verdict(data: bytes) -> None:
    try:
        verdict_from_dict(_object(data))
    except ValueError as error:  # its documented error
        raise AgentFlowError(str(error)) from error


def _object(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise AgentFlowError("the caller's own parser") from error


def _config(data: bytes) -> None:
    with tempfile.NamedTemporaryFile(suffix=".json") as file:
        Path(file.name).write_bytes(data)
        read_config(file.name)


_LOADERS: Mapping[str, Callable[[bytes], object]] = {
    "session": _session,
    "fact": fact_from_json,
    "verdict": _verdict,
    "message": lambda data: (msg_from_dict(_object(data)), Msg.from_json(data)),
    "pending": lambda data: Pending.from_dict(_object(data)),
    "agent": lambda data: Agent.from_json(data, tools=[look]),
    "turn": lambda data: Turn.from_json(data, tools=[look]),
    "config": _config,
}


class _Commands:
    """All that reads a run log."""

    def __init__(self, folder: Path, good: bytes) -> None:
        self._folder = folder
        self._good = folder / "good.jsonl"
        self._bad = folder / "bad.jsonl"
        self._good.write_bytes(good)

    def readers(self, data: bytes) -> Iterator[tuple[str, Callable[[], object]]]:
        """The readers, by name."""
        self._bad.write_bytes(data)
        good, bad, page = str(self._good), str(self._bad), str(self._folder / "page.html")
        yield "read_lines", lambda: read_lines(data.split(b"\n"))
        yield "the list of runs", self._list
        yield "replay", lambda: _command("replay", bad, f"{__spec__.name}:agent")
        yield "diff", lambda: _command("diff", bad, good)
        yield "explain", lambda: _command("explain", bad, "last")
        yield "inspect", lambda: _command("inspect", bad, "--export", page)

    def _list(self) -> None:
        logs = Logs([self._folder])
        listed = logs.runs()
        assert any(run.file == "good.jsonl" and not run.problem for run in listed), "another run is not listed"
        json.dumps([run.as_dict() for run in listed], allow_nan=False).encode()
        logs.search("look")
        for run in listed:
            source = logs.source(run.id)
            assert source is not None
            source.lines()


def _command(*arguments: str) -> None:
    done = CliRunner().invoke(cli, arguments)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code in (0, 1, 2), f"exit code {done.exit_code}"
    assert "Traceback" not in done.output, done.output


# ---- the trial


@dataclass(frozen=True)
class Finding:
    """A forbidden reaction of a reader to a document.

    Attributes:
        seed: Reproduces the document, with `number`.
        document: The document that was damaged.
        reader: Who read it.
        what: The result.
    """

    seed: int
    number: int
    document: str
    reader: str
    what: str

    def __str__(self) -> str:
        return f"{self.reader}, {self.document} (--only {self.seed}:{self.number}): {self.what}"


class _TooLongError(BaseException):
    """A reader does not end; nothing catches it."""


@contextmanager
def _at_most(seconds: float) -> Generator[None]:
    if not hasattr(signal, "setitimer"):  # not on Windows
        yield
        return

    def over(_signal: int, _frame: object) -> None:
        raise _TooLongError

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(
        signal.ITIMER_REAL, seconds, 1.0
    )  # again and again: a callback of an event loop would swallow the first
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fuzz(
    count: int, seed: int = 0, only: int | None = None, told: Callable[[str], None] = lambda _: None
) -> tuple[list[Finding], Counter[str]]:
    """Give damaged documents to all readers.

    Args:
        count: How many documents.
        seed: Settles which.
        only: The number of one; None: all.
        told: Receives progress, and each finding.

    Returns:
        The findings, and how many documents were refused and read, by kind of document.
    """
    logger.disable("agentflow")
    logging.disable(logging.CRITICAL)
    real = documents()
    names = sorted(real, key=lambda name: (not name.startswith("log"), name))
    logs = [name for name in names if name.startswith("log")]
    findings: list[Finding] = []
    came: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as place:
        commands = _Commands(Path(place), real["log recorded"])
        for number in range(count) if only is None else (only,):
            rng = random.Random(f"{seed} {number}")
            name = rng.choice(logs) if rng.random() < 0.6 else rng.choice(names)
            data = mutated(real[name], rng)
            if only is not None:
                Path("damaged.jsonl").write_bytes(data)
            kind = name.partition(" ")[0]
            readers = commands.readers(data) if kind == "log" else ((kind, partial(_LOADERS[kind], data)),)
            for reader, read in readers:
                what = _tried(read)
                came[f"{kind}: {'refused' if what is None else 'read' if not what else 'WRONG'}"] += reader in (
                    kind,
                    "read_lines",
                )
                if what:
                    findings.append(Finding(seed, number, name, reader, what))
                    told(str(findings[-1]))
            if number % 1000 == 999:
                told(f"{number + 1} documents, {len(findings)} findings")
    logging.disable(logging.NOTSET)
    logger.enable("agentflow")
    return findings, came


def _tried(read: Callable[[], object]) -> str | None:
    """The result of reading: None: it was refused, empty: it was read; else the forbidden result."""
    try:
        with _at_most(LIMIT):
            read()
    except AgentFlowError:
        return None
    except _TooLongError:
        return f"it does not end within {LIMIT:g} s"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # whatever it is, it is a finding
        trace = error.__traceback__
        while trace is not None and trace.tb_next is not None:
            trace = trace.tb_next
        at = "" if trace is None else f" at {trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}"
        return f"{type(error).__name__}: {error!s:.200}{at}"
    return ""


def main() -> int:
    """Run it; return 1 if there are findings."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.damaged", description="Damaged documents for everything that reads."
    )
    parser.add_argument("--count", type=int, default=20_000, help="how many documents")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", metavar="SEED:NUMBER", help="one document again")
    given = parser.parse_args()
    began, seed, only = time.monotonic(), given.seed, None
    if given.only:
        seed, only = (int(part) for part in given.only.split(":"))
    findings, came = fuzz(given.count, seed, only, lambda text: print(text, flush=True))
    for name, number in sorted(came.items()):
        print(f"{number:>7} {name}")
    print(f"{len(findings)} findings in {time.monotonic() - began:.0f} s")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
