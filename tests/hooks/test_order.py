"""The order of hooks: the same rule for every event."""

from typing import Any

import pytest
from eventlog import Recorder, use

from agentflow import Again, Agent, Deny, Hook, Recover, Stop, Suspend, ToolEmitter, tool
from agentflow.testing import ScriptedModel
from agentflow.vocabulary.events import (
    ActingChunk,
    CallEnded,
    Error,
    MessagesAdded,
    PostActing,
    PostCall,
    PostReasoning,
    PostToolRound,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
    ReasoningChunk,
)
from agentflow.vocabulary.verdicts import Verdict

RUN_EVENTS = [
    PreCall,
    PreReasoning,
    ReasoningChunk,
    PostReasoning,
    PreToolRound,
    PreActing,
    ActingChunk,
    PostActing,
    PostToolRound,
    PostCall,
    Error,
    CallEnded,
    MessagesAdded,
]


@tool
async def work(emitter: ToolEmitter) -> str:
    """Emits, then fails."""
    await emitter.emit("piece")
    raise ValueError("broken")


class Named(Hook):
    """Records that it ran."""

    def __init__(self, name: str, priority: int, seen: list[tuple[str, str]], **options: Any) -> None:
        self.label = name
        self.priority = priority
        self.order = seen
        for option, value in options.items():
            setattr(self, option, value)

    @property
    def name(self) -> str:
        return self.label

    def on_event(self, event: Any) -> Any:
        self.order.append((type(event).__name__, self.label))
        if isinstance(event, PreToolRound) and self.label == "10":
            event.context.inject("note")
        return event


async def _run(hooks: list[Hook]) -> None:
    agent = Agent("a", ScriptedModel([[use("t1", "work")], "end"]), tools=[work], hooks=hooks)
    await agent.call("go")


@pytest.mark.parametrize("kind", RUN_EVENTS, ids=lambda kind: kind.__name__)
async def test_ascending_priority_on_every_event(kind: type) -> None:
    """Registered as 500, 10, 100, 100, hooks run as 10, 100, 100, 500, on every event of a run."""
    seen: list[tuple[str, str]] = []
    names = [("500", 500), ("10", 10), ("100a", 100), ("100b", 100)]
    await _run([Named(name, priority, seen) for name, priority in names])
    ran = [name for event, name in seen if event == kind.__name__]
    assert ran[:4] == ["10", "100a", "100b", "500"]
    assert ran == ran[:4] * (len(ran) // 4)


@pytest.mark.parametrize("kind", RUN_EVENTS, ids=lambda kind: kind.__name__)
async def test_editors_then_guards_then_observers(kind: type) -> None:
    """Editing hooks first, then guards, then observers, whatever their priorities; within each group by priority."""
    seen: list[tuple[str, str]] = []
    hooks: list[Hook] = [
        Named("observer 1", 1, seen, observer=True),
        Named("guard 2", 2, seen, guard=True),
        Named("guard 1", 1, seen, guard=True),
        Named("editor 900", 900, seen),
        Named("10", 10, seen),
        Named("observer 0", 0, seen, observer=True),
    ]
    await _run(hooks)
    ran = [name for event, name in seen if event == kind.__name__]
    assert ran[:6] == ["10", "editor 900", "guard 1", "guard 2", "observer 0", "observer 1"]


async def test_ties_keep_the_order_of_registration_whatever_the_form() -> None:
    """Hooks of one priority run in the order of registration: the agent's, then those added by `on`, then the call's."""
    order: list[str] = []
    agent = Agent("a", ScriptedModel(["x"]), hooks={"after_llm": [lambda event: order.append("agent")]})
    agent.on("after_llm", lambda event: order.append("on"))
    await agent.call("go", hooks={"after_llm": lambda event: order.append("call")})
    assert order == ["agent", "on", "call"]


async def test_a_call_hook_sorts_by_its_priority() -> None:
    """A hook of the call with a low priority runs before the agent's hooks."""
    seen: list[tuple[str, str]] = []
    agent = Agent("a", ScriptedModel(["x"]), hooks=[Named("agent", 50, seen)])
    await agent.call("go", hooks=[Named("call", 40, seen)])
    assert [name for event, name in seen if event == "PreCall"] == ["call", "agent"]


async def test_around_nests_by_priority_lowest_outermost() -> None:
    """`around` nests in the order of the chain: the lowest priority is outermost."""
    order: list[str] = []

    class Wrap(Hook):
        def __init__(self, name: str, priority: int) -> None:
            self.label = name
            self.priority = priority

        def around(self, event: Any, source: Any) -> Any:
            if not isinstance(event, PreReasoning):
                return source
            order.append(f"built {self.label}")
            return source.map(lambda chunk: order.append(self.label) or chunk)

    agent = Agent("a", ScriptedModel(["x"]), hooks=[Wrap("outer", 1), Wrap("inner", 500), Wrap("middle", 100)])
    await agent.call("go")
    assert [name for name in order if not name.startswith("built")] == ["inner", "middle", "outer"]


async def test_describe_prints_the_order() -> None:
    """`agent.hooks.describe()` lists, event by event, class, priority and hook."""

    class Edit(Hook):
        priority = 10

        def on_event(self, event: Any) -> Any:
            return event

        def around(self, event: Any, source: Any) -> Any:
            return source

    class Judge(Edit):
        guard = True
        events = (PreActing,)

    class Watch(Edit):
        observer = True
        events = (PreActing, CallEnded)

    agent = Agent("a", "openai/gpt-5", hooks=[Watch(), Judge(), Edit()], default_hooks=())
    text = agent.hooks.describe()
    assert text.splitlines()[:4] == [
        "PreCall",
        "  edit        10  Edit",
        "  around      10  Edit",
        "  around      10  Judge",
    ]
    block = text[text.index("PreActing") :].split("\nActingChunk")[0]
    assert block.splitlines() == [
        "PreActing",
        "  edit        10  Edit",
        "  guard       10  Judge",
        "  observe     10  Watch",
        "  around      10  Edit",
        "  around      10  Judge",
        "  around      10  Watch",
    ]
    assert Agent("b", "openai/gpt-5", default_hooks=()).hooks.describe() == "no hooks"


async def test_guards_judge_what_editors_made() -> None:
    """A guard sees the edited event, even with a lower priority than the editor, and cannot edit it."""
    caught: list[str] = []

    class Edit(Hook):
        priority = 900

        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreActing):
                event.tool_use = event.tool_use.replace(name="delete")
            return event

    class Judge(Hook):
        priority = 1
        guard = True

        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreActing):
                try:
                    event.tool_use = event.tool_use.replace(name="other")
                except AttributeError as error:
                    caught.append(str(error))
                return Deny("no") if event.tool_use.name == "delete" else event
            return event

    agent = Agent("a", ScriptedModel([[use("t1", "work")], "end"]), tools=[work], hooks=[Judge(), Edit()])
    await agent.call("go")
    assert agent.session().messages[2].tool_results[0].state == "denied"
    text = (
        "PreActing.tool_use cannot be assigned: the event is sealed after its editing hooks. A guard may only veto (return "
        "Deny(...)), an observer or a reader must not change it. Assign it in a hook with guard=False and observer=False, "
        "or make a changed copy with event.replace(...)."
    )
    assert caught == [text]


async def test_observers_run_always() -> None:
    """Observers get the sealed event with its verdict, after a verdict that skipped the rest and after a failure."""
    seen: list[Any] = []

    class Bad(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreCall):
                return Deny("no")
            if isinstance(event, PostCall):
                raise ValueError("bad")  # noqa: TRY004 - what a broken hook raises
            return event

    class Watch(Hook):
        observer = True

        def on_event(self, event: Any) -> Any:
            assert event.sealed
            decided = event.decision
            seen.append((type(event).__name__, decided and type(decided.verdict or decided.error).__name__))

    agent = Agent("a", ScriptedModel([]), hooks=[Bad(), Watch()])
    with pytest.raises(ValueError, match="bad"):
        await agent.call("go")
    assert sorted(seen[1:3], key=str) == [("Error", None), ("PostCall", "ValueError")]
    assert (seen[0], seen[3:]) == (("PreCall", "Deny"), [("CallEnded", None)])


@pytest.mark.parametrize("slow_one", range(4))
@pytest.mark.parametrize("broken_one", range(4))
async def test_each_observer_sees_each_event_once(slow_one: int, broken_one: int) -> None:
    """Whichever observer is awaited, and whichever fails, the others get each event once, in order."""
    seen: list[tuple[str, int]] = []

    class Watch(Hook):
        observer = True

        def __init__(self, place: int) -> None:
            self.place = self.priority = place

        def on_event(self, event: Any) -> Any:
            seen.append((type(event).__name__, self.place))
            if self.place == broken_one and isinstance(event, PreCall):
                raise ValueError("bad")
            return self.later() if self.place == slow_one else None

        async def later(self) -> None:
            return None

    agent = Agent("a", ScriptedModel(["ok"]), hooks=[Watch(place) for place in range(4)])
    assert (await agent.call("go")).text == "ok"
    for kind in ("PreCall", "PreReasoning", "ReasoningChunk", "PostReasoning", "PostCall", "CallEnded"):
        assert [place for name, place in seen if name == kind] == [0, 1, 2, 3], kind


@pytest.mark.parametrize("answer", [Deny("no"), Recover("x"), "text"])
async def test_what_an_observer_answers_changes_nothing(answer: Any) -> None:
    """The answer of an observer, even a verdict, changes nothing."""

    class Watch(Hook):
        observer = True

        def on_event(self, event: Any) -> Any:
            return answer

    assert (await Agent("a", ScriptedModel(["ok"]), hooks=[Watch()]).call("go")).text == "ok"


def says(kind: type, verdict: Verdict, name: str, **options: Any) -> Hook:
    """A hook that answers each event of a class with a verdict."""

    class Says(Hook):
        events = (kind,)

        @property
        def name(self) -> str:
            return name

        def on_event(self, event: Any) -> Verdict | None:
            return None if getattr(event, "purpose", "") == "summary" else verdict

    made = Says()
    for option, value in options.items():
        setattr(made, option, value)
    return made


@pytest.mark.parametrize("second", [{}, {"guard": True}], ids=["editor", "guard"])
@pytest.mark.parametrize("kind", [PostReasoning, PostActing, PostToolRound], ids=lambda kind: kind.__name__)
async def test_of_two_equal_verdicts_the_first_counts(kind: type, second: Any) -> None:
    """On a Post event all hooks run; of verdicts of equal strength the first one decides, and is reported as the
    first hook's.
    """
    recorder = Recorder()
    hooks = [
        says(kind, Stop("first"), "one", priority=1),
        says(kind, Stop("second"), "two", priority=2, **second),
        recorder,
    ]
    reply = await Agent("a", ScriptedModel([[use("t1", "work")], "end"]), tools=[work], hooks=hooks).call("go")
    decisions = [event.decision for event in recorder.seen if isinstance(event, kind) and event.decision is not None]
    assert (reply.text, reply.outcome) == ("first", "stopped")
    assert [(decided.verdict, decided.hook) for decided in decisions] == [(Stop("first"), "one")]


async def test_of_two_equal_verdicts_the_first_gives_its_messages() -> None:
    """The same holds for Again: the model reads the text of the first hook, not of the second."""
    first = says(PostReasoning, Again("shorter"), "one", priority=1)
    second = says(PostReasoning, Again("longer"), "two", priority=2)
    agent = Agent("a", ScriptedModel(["long", "short", "done"]), hooks=[first, second], max_iterations=2)
    await agent.call("go")
    assert [msg.text for msg in agent.session().messages if msg.role == "user"] == ["go", "shorter", "shorter"]


async def test_the_strongest_verdict_counts_wherever_it_stands() -> None:
    """Suspend, then Stop, then Again, whatever the order."""
    again, stop, suspend = Again("once more"), Stop("enough"), Suspend({"why": "ask"})
    for order, outcome in (
        ([again, stop], "stopped"),
        ([stop, again], "stopped"),
        ([stop, suspend], "suspended"),
        ([suspend, again], "suspended"),
    ):
        hooks = [says(PostReasoning, verdict, str(n), priority=n) for n, verdict in enumerate(order)]
        assert (await Agent("a", ScriptedModel(["hi"]), hooks=hooks).call("go")).outcome == outcome
