"""Approval: who decides, where answers are stored, and that no answer means no."""

import asyncio
import io
import os
import sys
import threading
from typing import Any

import pytest
from eventlog import history, use
from wired import Wired

from agentflow import Agent, Approve, Hook, Session, ToolSchedule, tool
from agentflow.errors import UsageError
from agentflow.plugins.approval import Allow, Approval, ApprovalDecision, ApprovalRequest, Refuse
from agentflow.plugins.approval.terminal import TerminalAsker
from agentflow.plugins.cache import ToolCache
from agentflow.testing import ScriptedModel
from agentflow.testing.wire import Say, ScriptedCall
from agentflow.testing.wire import WireReply as WireReply
from agentflow.vocabulary.events import PreActing
from agentflow.vocabulary.messages import ToolUseBlock

RAN: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    RAN.clear()


@tool
async def write(path: str, text: str = "") -> str:
    """Write a file."""
    RAN.append(path)
    return f"wrote {path}"


@tool(type="read")
async def read(path: str) -> str:
    """Read a file."""
    RAN.append(path)
    return f"read {path}"


def results(agent: Agent, session: str | None = None) -> list[str]:
    """The results that the session holds."""
    return [result.text for msg in agent.session(session).messages for result in msg.tool_results]


def calls(*paths: str, name: str = "write") -> ScriptedModel:
    """A model that asks for a tool once per path, one round each, and then ends."""
    return ScriptedModel([*[use(f"t{n}", name, path=path) for n, path in enumerate(paths)], "Done."])


# ---- over the wire


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_a_refused_call_is_told_to_the_model(wired: Wired, how: str) -> None:
    """Allowed runs, denied and unapproved do not; the provider gets each reason as a result, in call order."""
    asked: list[str] = []

    def ask(request: ApprovalRequest) -> bool:
        asked.append(request.tool_use.input["path"])
        return request.tool_use.input["path"] == "b"

    script = [
        WireReply(
            "", calls=tuple(ScriptedCall("write", {"path": p}, f"t{p[-1]}") for p in ("/tmp/a", "b", "c", "/etc/d"))
        ),
        Say("Done."),
    ]
    async with wired.serve(script) as server:
        approval = Approval([Allow("write", path="/tmp/*"), Refuse("*", "not in /etc", path="/etc/*")], ask=ask)
        agent = Agent("a", wired.model(server), tools=[write], hooks=[approval])
        if how == "stream":
            async with agent.stream("go") as events:
                async for _ in events:
                    pass
        else:
            await agent.call("go")
    assert [answer.text for answer in server.requests[1].results] == [
        "wrote /tmp/a",
        "wrote b",
        "Denied: write was not approved",
        "Denied: not in /etc",
    ]
    assert (RAN, asked) == (["/tmp/a", "b"], ["b", "c"])


async def test_suspended_and_resumed(wired: Wired) -> None:
    """With `suspend=True` the call ends and waits; an approved resume passes, and the provider accepts it all."""
    async with wired.serve(
        [WireReply("", calls=(ScriptedCall("write", {"path": "x"}, "t1"),)), Say("Done.")]
    ) as server:
        agent = Agent("a", wired.model(server), tools=[write], hooks=[Approval(suspend=True)])
        reply = await agent.call("go", session="s")
        assert (reply.outcome, RAN) == ("suspended", [])
        assert reply.pending[0].request == {"tool": "write", "input": {"path": "x"}, "reason": "no rule allows it"}
        assert (await agent.resume("s", {"t1": Approve()})).text == "Done."
    assert RAN == ["x"]


# ---- rules


@pytest.mark.parametrize(
    ("rule", "name", "arguments", "fits"),
    [
        (Allow("read_*"), "read_file", {}, True),
        (Allow("read_*"), "READ_FILE", {}, False),
        (Allow("w", path="/tmp/*"), "w", {"path": "/tmp/x"}, True),
        (Allow("w", path="/tmp/*"), "w", {"path": "/etc/x"}, False),
        (Allow("w", path="*"), "w", {}, False),
        (Allow("pay", cents="5"), "pay", {"cents": 5}, True),
        (Allow("pay", when=lambda use: use.input["cents"] < 10), "pay", {"cents": 50}, False),
        (Refuse("w", list='["a", *'), "w", {"list": ["a", "b"]}, True),
    ],
)
def test_what_a_rule_is_about(rule: Any, name: str, arguments: dict[str, Any], fits: bool) -> None:
    """The tool's name, the named arguments as text, and the function, all have to fit."""
    assert rule.fits(ToolUseBlock("t1", name, arguments)) is fits


async def test_deny_comes_before_allow_and_holds_when_approved() -> None:
    """Neither the order of rules, nor a grant, nor a resume with `Approve` gets past a deny rule."""
    approval = Approval([Allow("*"), Refuse("write", "no", path="/etc/*")], always={"write"})
    agent = Agent("a", calls("/etc/x", "y"), tools=[write], hooks=[approval])
    await agent.call("go")
    assert results(agent) == ["Denied: no", "wrote y"]

    agent = Agent(
        "b", calls("x"), tools=[write], hooks=[Approval([Refuse("write", "no", path="/etc/*")], suspend=True)]
    )
    await agent.call("go", session="s")
    await agent.resume("s", {"t0": Approve(input={"path": "/etc/passwd"})})
    assert results(agent, "s") == ["Denied: no"]
    assert RAN == ["y"]


async def test_a_guard_judges_what_will_run() -> None:
    """The guard evaluates the call as editing hooks left it."""

    class Moves(Hook):
        priority = 900

        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreActing):
                event.tool_use = event.tool_use.replace(input={"path": "/etc/x"})
            return event

    agent = Agent("a", calls("/tmp/x"), tools=[write], hooks=[Approval([Allow("write", path="/tmp/*")]), Moves()])
    await agent.call("go")
    assert RAN == []


async def test_unknown_tools_need_approval() -> None:
    """A tool without a rule, or unknown to the agent, needs an answer like any other."""
    asked: list[str] = []

    def ask(request: ApprovalRequest) -> bool:
        asked.append(request.tool_use.name)
        return True

    agent = Agent("a", calls("x", name="nuke"), tools=[write], hooks=[Approval([Allow("write")], ask=ask)])
    await agent.call("go")
    assert asked == ["nuke"]
    assert results(agent)[0].startswith("There is no tool named 'nuke'")


# ---- no answer


async def _fails(request: ApprovalRequest) -> bool:
    raise ConnectionError("gone")


@pytest.mark.parametrize(
    ("ask", "reason"),
    [
        (None, "write needs approval, but there is no asker (no rule allows it)"),
        (_fails, "write needs approval, but the asker failed (ConnectionError)"),
        (lambda request: "maybe", "write was not approved (the asker's answer was not understood)"),
        (lambda request: 1, "write was not approved (the asker's answer was not understood)"),
        (lambda request: None, "write was not approved"),
        (
            TerminalAsker(read=lambda: "", write=io.StringIO(), interactive=True),
            "write was not approved (the input is closed)",
        ),
        (
            TerminalAsker(write=io.StringIO(), interactive=False),
            "write needs approval, and there is no terminal to ask at",
        ),
        (lambda request: ApprovalDecision("no", "too late"), "too late"),
    ],
)
async def test_silence_means_no(ask: Any, reason: str) -> None:
    """No asker, one that fails, returns an illegal value or has no terminal: refused, with the reason for the model."""
    agent = Agent("a", calls("x"), tools=[write], hooks=[Approval(ask=ask)])
    await agent.call("go")
    assert (results(agent), RAN) == ([f"Denied: {reason}"], [])


# ---- what is remembered


class Answers:
    """An asker that gives its answers in order, and counts."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked = 0

    async def __call__(self, request: ApprovalRequest) -> Any:
        self.asked += 1
        return self.answers.pop(0)


async def test_once_session_always() -> None:
    """Once counts for one call, session for one session, always for all that share the store."""
    ask = Answers("once", "session", "no")
    agent = Agent("a", ScriptedModel(_paths), tools=[write], hooks=[Approval(ask=ask)])
    for session in ("s", "s", "s", "t"):
        await agent.call("go", session=session)
    assert ask.asked == 3
    assert [len(agent.session(s).messages) for s in ("s", "t")] == [12, 4]
    assert results(agent, "t") == ["Denied: write was not approved"]

    kept: set[str] = set()
    first = Agent("b", calls("x"), tools=[write], hooks=[Approval(ask=Answers("always"), always=kept)])
    await first.call("go")
    assert kept == {"write"}
    second = Agent("c", calls("y"), tools=[write], hooks=[Approval(always=kept)])
    await second.call("go")
    stranger = Agent("d", calls("z"), tools=[write], hooks=[Approval()])
    await stranger.call("go")
    assert RAN == ["go", "go", "go", "x", "y"]


def _paths(request: Any) -> Any:
    """Ask for the tool once per call, then end."""
    last = request.messages[-1]
    return "Done." if last.role == "tool" else ToolUseBlock(f"t{len(request.messages)}", "write", {"path": "go"})


async def test_one_instance_serves_fifty_runs_at_once() -> None:
    """A grant for one session is no grant for another one that runs at the same time."""

    async def ask(request: ApprovalRequest) -> str:
        await asyncio.sleep(0)
        return "session" if int(request.session_id) % 2 else "no"

    approval = Approval(ask=ask)
    agent = Agent("a", ScriptedModel(_paths), tools=[write], hooks=[approval])
    await asyncio.gather(*(agent.call("go", session=str(n)) for n in range(50)))
    approval.ask = None
    await asyncio.gather(*(agent.call("go", session=str(n)) for n in range(50)))
    for n in range(50):
        assert [text.startswith("wrote") for text in results(agent, str(n))] == [bool(n % 2)] * 2
    assert approval.always == set()


def test_what_cannot_be_meant_is_refused() -> None:
    """An asker and `suspend`, or a rule that is none, are refused when the hook is made."""
    with pytest.raises(UsageError, match="pass either ask="):
        Approval(ask=lambda request: True, suspend=True)
    with pytest.raises(UsageError, match="a rule must be"):
        Approval(["bash"])  # pyright: ignore[reportArgumentType]


# ---- the terminal


def request(name: str = "write", **arguments: Any) -> ApprovalRequest:
    """A question."""
    return ApprovalRequest("helper", ToolUseBlock("t1", name, arguments), "s", "no rule allows it", name)


async def test_what_is_shown() -> None:
    """Tool and arguments are shown in full, long texts indented, control characters as escapes."""
    screen = io.StringIO()
    asker = TerminalAsker(read=lambda: "y\n", write=screen, interactive=True)
    decision = await asker(request(path="a\x1b[2Jb\u202e", text="one\ntwo", many=[1, {"x": None}]))
    assert decision == ApprovalDecision("once")
    assert screen.getvalue() == (
        "\nhelper wants to run write (no rule allows it)\n"
        "  path: a\\x1b[2Jb\\u202e\n"
        "  text:\n"
        "    | one\n"
        "    | two\n"
        '  many: [1, {"x": null}]\n'
        "  y = once, s = write in this session, a = write always, n [reason] = no: "
    )


@pytest.mark.parametrize(
    ("lines", "decision"),
    [
        (["y"], ApprovalDecision("once")),
        (["yes"], ApprovalDecision("once")),
        (["S"], ApprovalDecision("session")),
        (["always"], ApprovalDecision("always")),
        (["n"], ApprovalDecision("no")),
        (["n not on a Friday"], ApprovalDecision("no", "not on a Friday")),
        (["", "what?", "y please", "n"], ApprovalDecision("no")),
    ],
)
async def test_answers(lines: list[str], decision: ApprovalDecision) -> None:
    """Letters or words, with a reason after a no; anything else is asked again, and an empty line is no approval."""
    given = iter(lines)
    asker = TerminalAsker(read=lambda: f"{next(given)}\n", write=io.StringIO(), interactive=True)
    assert await asker(request()) == decision


async def test_questions_come_one_by_one() -> None:
    """Two questions at the same time are asked one after the other; a lasting answer decides the second."""
    screen = io.StringIO()
    turn = threading.Semaphore(0)
    reads = 0

    def read_line() -> str:
        nonlocal reads
        reads += 1
        turn.acquire()
        return "s\n"

    asker = TerminalAsker(read=read_line, write=screen, interactive=True)
    model = ScriptedModel([[use("t1", "read", path="a"), use("t2", "read", path="b")], "Done."])
    agent = Agent("a", model, tools=[read], hooks=[Approval(ask=asker)])
    call = asyncio.ensure_future(agent.call("go"))
    turn.release()
    await call
    assert (reads, screen.getvalue().count("wants to run")) == (1, 1)
    assert sorted(RAN) == ["a", "b"]


async def test_a_cancelled_question_is_taken_back() -> None:
    """Ctrl-C (a cancelled call) ends the wait at once; a later line answers neither this question nor the next one."""
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()
    line = threading.Semaphore(0)
    given = iter(["y\n", "n later\n"])

    def read_line() -> str:
        loop.call_soon_threadsafe(begun.set)
        line.acquire()
        return next(given)

    asker = TerminalAsker(read=read_line, write=io.StringIO(), interactive=True)
    agent = Agent("a", calls("x"), tools=[write], hooks=[Approval(ask=asker)])
    call = asyncio.ensure_future(agent.call("go"))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    second = asyncio.ensure_future(asker(request()))
    line.release()
    line.release()
    assert await second == ApprovalDecision("no", "later")
    assert RAN == []
    assert history(agent.session())[-1].startswith("tool: t0 interrupted")


async def test_a_terminal_that_breaks_means_no() -> None:
    """Ctrl-C inside the read, or an error of the terminal, refuses the call."""

    def interrupted() -> str:
        raise KeyboardInterrupt

    asker = TerminalAsker(read=interrupted, write=io.StringIO(), interactive=True)
    assert await asker(request()) == ApprovalDecision(
        "no", "write was not approved (KeyboardInterrupt at the terminal)"
    )


class Screen(io.StringIO):
    """Calls back when a question is complete."""

    def __init__(self, asked: Any) -> None:
        super().__init__()
        self._asked = asked

    def flush(self) -> None:
        if self.getvalue().endswith(" = no: "):
            self._asked()


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
async def test_at_a_real_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was typed before the question is no answer; a question that is taken back eats no line."""
    person, terminal = os.openpty()
    loop = asyncio.get_running_loop()
    with os.fdopen(terminal) as stdin, os.fdopen(person, "wb", buffering=0) as keyboard:
        monkeypatch.setattr(sys, "stdin", stdin)
        keyboard.write(b"y\n")  # typed ahead
        questions = asyncio.Queue[None]()
        asker = TerminalAsker(write=Screen(lambda: loop.call_soon_threadsafe(questions.put_nowait, None)))
        first = asyncio.ensure_future(asker(request()))
        await questions.get()
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        second = asyncio.ensure_future(asker(request()))
        await questions.get()
        keyboard.write(b"n not now\n")
        assert await second == ApprovalDecision("no", "not now")


async def test_nobody_is_asked_about_a_call_that_cannot_run() -> None:
    """Arguments that are no JSON: the model gets the error, and no person the question; a deny rule comes first as ever."""
    asked: list[str] = []

    async def ask(request: ApprovalRequest) -> str:
        asked.append(request.tool_use.id)
        return "once"

    broken = [ToolUseBlock.from_json(f"t{n}", name, '{"path": ') for n, name in enumerate(["write", "wipe"])]
    agent = Agent("a", ScriptedModel([broken, "Sorry."]), hooks=[Approval([Refuse("wipe")], ask=ask)])
    await agent.call("Go")
    assert asked == []
    assert [result.state for result in agent.session().messages[2].tool_results] == ["not_found", "denied"]


# ---- beside a cache


class Person:
    """Gives the scripted answers, and records the questions."""

    def __init__(self, *answers: Any) -> None:
        self.asked: list[str] = []
        self._answers = list(answers)

    async def __call__(self, request: ApprovalRequest) -> Any:
        self.asked.append(request.tool_use.id)
        await asyncio.sleep(0)
        return self._answers.pop(0) if self._answers else True


def looks(*rounds: Any) -> ScriptedModel:
    """A model that looks up paths, a round for each list of ids and paths, and then ends."""
    return ScriptedModel([*[[use(id, "read", path=path) for id, path in pairs] for pairs in rounds], "end"])  # noqa: A001


@pytest.mark.parametrize(
    ("rounds", "single_flight", "asked", "ran"),
    [
        ([[("t1", "/a"), ("t2", "/a")]], True, ["t1"], 1),
        ([[("t1", "/a"), ("t2", "/a"), ("t3", "/b")]], True, ["t1", "t3"], 2),
        ([[("t1", "/a")], [("t2", "/a")]], True, ["t1"], 1),
        ([[("t1", "/a")], [("t2", "/b"), ("t3", "/a")]], True, ["t1", "t2"], 2),
        ([[("t1", "/a"), ("t2", "/a")], [("t3", "/a")]], False, ["t1", "t2"], 2),
    ],
)
async def test_a_person_is_asked_once_for_each_run_of_a_tool(
    rounds: Any, single_flight: bool, asked: list[str], ran: int
) -> None:
    """A repetition that `ToolCache` answers from a result of this run needs no question; without the cache each call
    does.
    """
    person = Person()
    hooks = [Approval(ask=person), ToolCache(single_flight=single_flight)]
    agent = Agent("a", looks(*rounds), tools=[read], hooks=hooks)
    await agent.call("go")
    assert person.asked == asked
    assert len(RAN) == ran or not single_flight
    assert {text.partition(" ")[0] for text in results(agent)} == {"read"}
    RAN.clear()
    person = Person()
    agent = Agent("a", looks(*rounds), tools=[read], hooks=[Approval(ask=person)])
    await agent.call("go")
    assert len(person.asked) == len(RAN) == sum(map(len, rounds))


async def test_a_refusal_holds_for_the_same_calls_of_the_round() -> None:
    """One no decides both; in the next round the person is asked again."""
    person = Person(ApprovalDecision("no", "not now"))
    model = looks([("t1", "/a"), ("t2", "/a")], [("t3", "/a")])
    agent = Agent("a", model, tools=[read], hooks=[Approval(ask=person), ToolCache()])
    await agent.call("go")
    assert results(agent) == ["Denied: not now", "Denied: not now", "read /a"]
    assert person.asked == ["t1", "t3"]


@pytest.mark.parametrize("at_once", [True, False])
async def test_one_approval_is_good_for_one_run(at_once: bool) -> None:
    """The approved run fails: the equal parallel call does not run on that approval; a later one is asked about."""

    @tool(type="read")
    async def read(path: str) -> str:
        RAN.append(path)
        await asyncio.sleep(0)
        raise LookupError("gone")

    person = Person()
    schedule = ToolSchedule.PARALLEL if at_once else ToolSchedule.SEQUENTIAL
    model = looks([("t1", "/a"), ("t2", "/a")], [("t3", "/a")])
    hooks = [Approval(ask=person), ToolCache()]
    agent = Agent("a", model, tools=[read], hooks=hooks, schedule=schedule)
    await agent.call("go")
    assert person.asked == (["t1", "t3"] if at_once else ["t1", "t2", "t3"])
    assert len(RAN) == len(person.asked)
    assert ("An equal call, which was approved together with this one, failed" if at_once else "gone") in results(
        agent
    )[1]


async def test_what_others_left_in_the_cache_is_asked_about() -> None:
    """An approval is for a run, not for other users of the cache; deny rules apply to hits too."""
    cache, person = ToolCache(), Person()
    for n in (1, 2):
        await Agent("a", looks([("t1", "/a")]), tools=[read], hooks=[Approval(ask=person), cache]).call("go")
        assert (len(person.asked), RAN) == (n, ["/a"])
    hooks = [Approval([Refuse("read", "never")], ask=person), cache]
    agent = Agent("a", looks([("t1", "/a")]), tools=[read], hooks=hooks)
    await agent.call("go")
    assert (results(agent), len(person.asked)) == (["Denied: never"], 2)


async def test_what_a_later_hook_makes_of_a_call_is_asked_about() -> None:
    """A hook after the cache changes the arguments of the second call, so it is no repetition."""

    class Edit(Hook):
        priority = 130

        def on_event(self, event: Any) -> None:
            if isinstance(event, PreActing) and event.tool_use.id == "t2":
                event.tool_use = event.tool_use.replace(input={"path": "/etc"})

    person = Person()
    model = looks([("t1", "/a")], [("t2", "/a")])
    await Agent("a", model, tools=[read], hooks=[Approval(ask=person), ToolCache(), Edit()]).call("go")
    assert (person.asked, RAN) == (["t1", "t2"], ["/a", "/etc"])


async def test_a_session_that_waits_beside_a_cache_can_be_saved() -> None:
    """Approved in another process, the call runs; the same call afterwards is neither asked about nor run."""

    def make(*rounds: Any) -> Agent:
        return Agent("a", looks(*rounds), tools=[read], hooks=[Approval(suspend=True), ToolCache()])

    agent = make([("t1", "/a")])
    assert (await agent.call("go", session="s")).outcome == "suspended"
    saved = Session.from_json(agent.session("s").to_json())
    reply = await make([("t2", "/a")]).resume(saved, {"t1": Approve()})
    assert (reply.outcome, RAN) == ("completed", ["/a"])
