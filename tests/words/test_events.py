"""Events as values: what may be written, when, and with which words it is refused."""

import pickle
from dataclasses import fields
from typing import Any, get_args

import pytest
from eventlog import use

from agentflow import Agent, Hook, ModelOptions, Msg, ToolResultBlock
from agentflow.testing import ScriptedModel, fire
from agentflow.vocabulary.events import (
    EVENT_TYPES,
    Decision,
    Error,
    ErrorPhase,
    Event,
    Notification,
    PostActing,
    PostCall,
    PostReasoning,
    PreActing,
    PreCall,
    PreReasoning,
)
from agentflow.vocabulary.specs import ToolSpec
from agentflow.vocabulary.verdicts import Decided, Deny, Verdict

USE = use("t1", "add", a=1)
RESULT = ToolResultBlock("t1", "add", "1")
BUILT: list[Event] = [
    PreCall(input_messages=[Msg.user("hi")]),
    PreReasoning(input_messages=[Msg.user("hi")], model="m"),
    PostReasoning(reasoning_result=Msg.assistant("x")),
    PreActing(tool_use=USE),
    PostActing(tool_use=USE, original_tool_use=USE, tool_result=RESULT),
    PostCall(final_message=Msg.assistant("x")),
]
WRITABLE = {
    "PreCall": {"input_messages"},
    "PreReasoning": {"input_messages", "tools", "model", "options"},
    "PostReasoning": {"reasoning_result"},
    "PreActing": {"tool_use"},
    "PostActing": {"tool_result"},
    "PostCall": {"final_message"},
}


def test_the_writable_fields() -> None:
    """Each class names its writable fields, as the contract's table does."""
    assert {kind.__name__: set(kind.writable) for kind in EVENT_TYPES if kind.writable} == WRITABLE


def test_decisions_and_notifications() -> None:
    """Notifications are the chunks, Error, MessagesAdded, CallEnded, PostPut, TurnValue, Paused and Resumed."""
    assert {kind.__name__ for kind in EVENT_TYPES if issubclass(kind, Notification)} == {
        "ReasoningChunk",
        "ActingChunk",
        "Error",
        "MessagesAdded",
        "CallEnded",
        "PostPut",
        "TurnValue",
        "Paused",
        "Resumed",
    }
    assert all(issubclass(kind, Decision) != issubclass(kind, Notification) for kind in EVENT_TYPES)


@pytest.mark.parametrize("event", BUILT, ids=lambda event: type(event).__name__)
async def test_an_event_is_sealed_when_its_chain_is_over(event: Event) -> None:
    """Built by hand it is open; after its chain nothing can be assigned: the error names event and field, and the
    remedy.
    """
    assert not event.sealed
    name = next(iter(event.writable))
    event, _ = await fire((), event)
    with pytest.raises(AttributeError) as caught:
        setattr(event, name, getattr(event, name))
    assert str(caught.value) == (
        f"{type(event).__name__}.{name} cannot be assigned: the event is sealed after its editing hooks. A guard may only "
        "veto (return Deny(...)), an observer or a reader must not change it. Assign it in a hook with guard=False and "
        "observer=False, or make a changed copy with event.replace(...)."
    )


@pytest.mark.parametrize("event", BUILT, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("name", ["iteration", "seq", "time", "decision", "unknown"])
def test_read_only_fields(event: Event, name: str) -> None:
    """Read-only and unknown fields name the writable ones, on the sealed event and on its open form."""
    text = f"{type(event).__name__}.{name} is read-only. Writable fields of {type(event).__name__}: "
    sealed = event.replace()
    object.__setattr__(sealed, "__class__", event.sealed_form)
    for form in (event, sealed):
        with pytest.raises(AttributeError) as caught:
            setattr(form, name, 1)
        assert str(caught.value) == f"{text}{', '.join(event.writable)}."


@pytest.mark.parametrize(
    ("event", "field", "value", "text"),
    [
        (
            BUILT[0],
            "input_messages",
            "hi",
            "PreCall.input_messages takes a sequence of Msg, such as [Msg.user('hello')], not str ('hi').",
        ),
        (
            BUILT[0],
            "input_messages",
            [1],
            "PreCall.input_messages takes a sequence of Msg, such as [Msg.user('hello')], not int (1).",
        ),
        (
            BUILT[1],
            "input_messages",
            Msg.user("x"),
            "PreReasoning.input_messages takes a sequence of Msg, such as [Msg.user('hello')], not Msg (",
        ),
        (BUILT[1], "tools", [1], "PreReasoning.tools takes a sequence of ToolSpec, not int (1)."),
        (BUILT[1], "model", 3, "PreReasoning.model takes a model's name (str), not int (3)."),
        (BUILT[1], "options", {}, "PreReasoning.options takes ModelOptions, not dict ({})."),
        (BUILT[2], "reasoning_result", "x", "PostReasoning.reasoning_result takes an assistant's Msg, not str ('x')."),
        (
            BUILT[2],
            "reasoning_result",
            Msg.user("x"),
            "PostReasoning.reasoning_result takes an assistant's Msg, not Msg",
        ),
        (BUILT[3], "tool_use", {}, "PreActing.tool_use takes a ToolUseBlock, not dict ({})."),
        (BUILT[3], "tool_use", use("t2", "add"), "PreActing.tool_use must keep its id 't1'"),
        (BUILT[4], "tool_result", "x", "PostActing.tool_result takes a ToolResultBlock, not str ('x')."),
        (BUILT[4], "tool_result", ToolResultBlock("t2", "add"), "PostActing.tool_result must be for call 't1'"),
        (BUILT[5], "final_message", "x", "PostCall.final_message takes an assistant's Msg, not str ('x')."),
        (BUILT[5], "final_message", Msg.assistant([USE]), "PostCall.final_message cannot change its tool calls"),
    ],
)
def test_wrong_values(event: Event, field: str, value: Any, text: str) -> None:
    """A wrong value is refused at assignment, and in replace and building: the error names event, field and type."""
    with pytest.raises(TypeError) as caught:
        setattr(event.replace(), field, value)
    assert str(caught.value).startswith(text)
    with pytest.raises(TypeError):
        event.replace(**{field: value})


@pytest.mark.parametrize("role", ["system", "tool"])
def test_input_is_what_can_be_stored(role: Any) -> None:
    """PreCall.input_messages takes no system and no tool messages: they could not be stored."""
    with pytest.raises(TypeError, match=r"PreCall\.input_messages takes user and assistant messages"):
        PreCall(input_messages=[Msg(role, ())])


def test_replace_leaves_the_original() -> None:
    """`replace` gives a changed copy that is open; the original stays as it is."""
    event = BUILT[3]
    changed = event.replace(tool_use=use("t1", "sub"))
    assert (event.tool_use.name, changed.tool_use.name) == ("add", "sub")  # type: ignore[attr-defined]
    assert (event.sealed, changed.sealed) == (False, False)
    assert isinstance(changed, PreActing)


def test_options_merge_over_what_was_there() -> None:
    """Assigned options are merged over the effective ones."""
    event = PreReasoning(options=ModelOptions(seed=1, temperature=0.5)).replace()
    event.options = ModelOptions(seed=2)
    assert event.options == ModelOptions(seed=2, temperature=0.5)


def test_match_sees_all_forms() -> None:
    """`match` and isinstance see the sealed and the open form alike."""
    for form in (BUILT[3], BUILT[3].replace()):
        match form:
            case PreActing(tool_use=found):
                assert found == USE
            case _:
                raise AssertionError


def test_what_was_decided() -> None:
    """`verdict` is that of the decision; None if the chain decided nothing, or failed."""
    decisions = (Decided(Deny("no"), "guard"), Decided(None, "broken", ValueError()), None)
    events = [PreActing(tool_use=USE, decision=decision) for decision in decisions]
    assert [event.verdict for event in events] == [Deny("no"), None, None]


def test_each_verdict_says_what_it_is() -> None:
    """In a word for people, whether guards may give it, and which counts where several are given."""
    said = [(kind.__name__, kind.label, kind.by_guards, kind.strength) for kind in get_args(Verdict)]
    assert said == [
        ("Deny", "denied", True, 0),
        ("Answer", "answered", False, 0),
        ("Again", "asked again", True, 1),
        ("Stop", "stop", True, 2),
        ("Suspend", "suspended", True, 3),
        ("Recover", "recovered", False, 0),
    ]


def test_an_error_is_not_fatal_by_default() -> None:
    """The defaults of an `Error`: a failure in the phase `CALL` that does not end the call."""
    error = OSError()
    built = Error(error=error)
    found = (built.error, built.phase, built.fatal, built.hook, built.tool_use, built.purpose, built.turn)
    assert found == (error, ErrorPhase.CALL, False, None, None, None, None)


def test_an_event_built_by_hand_has_no_run() -> None:
    """What belongs to a run is refused on an event that was built by hand."""
    with pytest.raises(AttributeError, match="was built by hand, so it has no run_id"):
        _ = BUILT[0].run_id


def test_tools_are_frozen_into_a_tuple() -> None:
    """Assigned sequences become the event's own copy."""
    specs = [ToolSpec("x")]
    event = PreReasoning(tools=specs)
    specs.append(ToolSpec("y"))
    assert len(event.tools) == 1


async def test_a_consumer_cannot_steer() -> None:
    """Every event that a reader gets is sealed, and so is every event that a hook kept."""
    kept: list[Event] = []

    class Keeps(Hook):
        def on_event(self, event: Any) -> Any:
            assert event.sealed is not bool(event.writable)
            kept.append(event)
            return event

    agent = Agent("a", ScriptedModel(["x"]), hooks=[Keeps()])
    handed = [event async for event in agent.stream("go")]
    assert all(event.sealed for event in [*kept, *handed])
    for event in handed:
        for name in (*event.writable, "seq"):
            with pytest.raises(AttributeError):
                setattr(event, name, getattr(event, name))


def test_verdict_words_can_be_pickled() -> None:
    """Messages and blocks survive pickling."""
    msg = Msg.assistant(["x", USE])
    assert pickle.loads(pickle.dumps(msg)) == msg


def test_an_unknown_field_is_refused_with_the_known_ones() -> None:
    """All fields of the event's own are named, and none of those that every event has."""
    with pytest.raises(TypeError) as caught:
        PreActing(tool_use=USE, also=1, tool=2)  # type: ignore[call-arg]
    names = ", ".join(f.name for f in fields(PreActing) if f.name not in {g.name for g in fields(Event)})
    assert str(caught.value) == f"PreActing() has no field also, tool. Its fields are {names}."
