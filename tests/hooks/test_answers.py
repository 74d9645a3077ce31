"""Every form of answer with every option of a hook: an answer has the same meaning in each form, with and without a
listener.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import reactivex
from eventlog import streamed, use
from thorough import THOROUGH
from toolbox import add

from agentflow import (
    Again,
    Agent,
    Answer,
    Deny,
    Error,
    Flux,
    Hook,
    HookResult,
    Mono,
    Msg,
    PostActing,
    PostReasoning,
    PreActing,
    PreCall,
    PreReasoning,
    Stop,
    Veto,
    on,
)
from agentflow.errors import HookContractError
from agentflow.hooks.recording import ChangeListener, HookCall
from agentflow.testing import ScriptedModel
from agentflow.vocabulary import Event


def _assign(event: PreActing) -> None:
    event.tool_use = event.tool_use.replace(input={"a": 40, "b": 2})


def _replaced(event: PreActing) -> PreActing:
    return event.replace(tool_use=event.tool_use.replace(input={"a": 40, "b": 2}))


def _half(answer: Any) -> Callable[[PreActing], Any]:
    """Edits the event, then answers with an illegal value or raises."""

    def half(event: PreActing) -> Any:
        if not event.sealed:
            _assign(event)
        if isinstance(answer, BaseException):
            raise answer
        return answer

    return half


def _assigned(event: PreActing) -> Any:
    _assign(event)


ANSWERS: dict[str, Callable[[PreActing], Any]] = {
    "the event": lambda event: event,
    "None": lambda event: None,
    "a changed event": _replaced,
    "an assignment": _assigned,
    "a verdict": lambda event: Deny("no"),
    "an answer": lambda event: Answer(7),
    "a veto": _half(Veto("no")),
    "nonsense": _half("yes"),
    "an error": _half(ValueError("broken")),
    "a cancellation of its own": _half(asyncio.CancelledError("mine")),
}
"""What a hook says to `PreActing`."""


async def _later(answer: Callable[[], Any]) -> Any:
    await asyncio.sleep(0)
    return answer()


def _future(answer: Callable[[], Any]) -> asyncio.Future[Any]:
    return asyncio.ensure_future(_later(answer))


WAYS: dict[str, Callable[[Callable[[], Any]], Any]] = {
    "at once": lambda answer: answer(),
    "coroutine": _later,
    "Future": _future,
    "Mono": Mono.from_callable,
    "Mono.defer": lambda answer: Mono.defer(lambda: Mono.from_callable(answer)),
    "Flux": lambda answer: Flux.defer(lambda: Flux.just(answer())),
    "foreign Observable": lambda answer: reactivex.defer(lambda _: reactivex.just(answer())),
    "coroutine of a Mono": lambda answer: _later(lambda: Mono.from_callable(answer)),
    "coroutine of a coroutine": lambda answer: _later(lambda: _later(answer)),
    "Mono of a coroutine": lambda answer: Mono.from_callable(lambda: _later(answer)),
    "Flux of a Mono": lambda answer: Flux.just(Mono.from_callable(answer)),
    "foreign Observable of a Mono": lambda answer: reactivex.just(Mono.from_callable(answer)),
}
"""How it comes."""
MOST_DIFFERENT = ("at once", "coroutine", "Mono", "Flux of a Mono", "foreign Observable")


class Form(Hook):
    """Answers `PreActing` in a given form."""

    events = (PreActing,)

    def __init__(self, way: Callable[[Callable[[], Any]], Any], answer: Callable[[Any], Any]) -> None:
        self.way = way
        self.answer = answer

    def on_event(self, event: Any) -> HookResult:
        return self.way(lambda: self.answer(event))


class Listener(ChangeListener):
    """Records what it receives."""

    events = ()

    def __init__(self) -> None:
        self.calls: list[HookCall] = []

    def on_call(self, call: HookCall) -> None:
        if isinstance(call.hook, Form):
            self.calls.append(call)


PLAIN = {
    "the event": "success '3'",
    "None": "success '3'",
    "a changed event": "success '42'",
    "an assignment": "success '42'",
    "a verdict": "denied 'Denied: no'",
    "an answer": "success '7'",
    "a veto": "denied 'Denied: no'",
    "nonsense": "raised HookContractError",
    "an error": "raised ValueError",
    "a cancellation of its own": "raised HookError",
}
SKIPS = {**PLAIN, **dict.fromkeys(("nonsense", "an error", "a cancellation of its own"), "success '3'")}
DENIES = {
    **PLAIN,
    "nonsense": "denied 'Denied: Form failed (HookContractError), so the request was denied'",
    "an error": "denied 'Denied: Form failed (ValueError), so the request was denied'",
    "a cancellation of its own": "denied 'Denied: Form failed (HookError), so the request was denied'",
}
NOTHING = dict.fromkeys(PLAIN, "success '3'")
ILLEGAL = "raised HookContractError"
GUARDS = {**PLAIN, "a changed event": ILLEGAL, "an assignment": "raised AttributeError", "an answer": ILLEGAL}
REFUSED = "denied 'Denied: Form failed ({}), so the request was denied'"
GUARDS_DENY = {
    **DENIES,
    "a changed event": REFUSED.format("HookContractError"),
    "an assignment": REFUSED.format("AttributeError"),
    "an answer": REFUSED.format("HookContractError"),
}

OPTIONS: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "none": ({}, PLAIN),
    "abort": ({"on_failure": "abort"}, PLAIN),
    "skip": ({"on_failure": "skip"}, SKIPS),
    "deny": ({"on_failure": "deny"}, DENIES),
    "timeout": ({"timeout": 60.0}, PLAIN),
    "timeout, skip": ({"timeout": 60.0, "on_failure": "skip"}, SKIPS),
    "in_thread": ({"in_thread": True}, PLAIN),
    "in_thread, deny": ({"in_thread": True, "on_failure": "deny"}, DENIES),
    "serial": ({"serial": True}, PLAIN),
    "serial, skip": ({"serial": True, "on_failure": "skip"}, SKIPS),
    "tools": ({"only_tools": ("a*",)}, PLAIN),
    "shadow": ({"shadow": True}, NOTHING),
    "shadow, deny": ({"shadow": True, "on_failure": "deny"}, NOTHING),
    "guard": ({"guard": True}, GUARDS),
    "guard, skip": (
        {"guard": True, "on_failure": "skip"},
        {**SKIPS, **dict.fromkeys(GUARDS, "success '3'"), **{name: PLAIN[name] for name in ("a verdict", "a veto")}},
    ),
    "guard, deny": ({"guard": True, "on_failure": "deny"}, GUARDS_DENY),
    "observer": ({"observer": True}, NOTHING),
    "observer, serial": ({"observer": True, "serial": True}, NOTHING),
}
"""Options of the hook, and what each answer then comes to."""


async def _result(hooks: list[Hook]) -> str:
    model = ScriptedModel([[use("t1", "add", a=1, b=2)], "end"])
    try:
        lines = await streamed(Agent("a", model, tools=[add], hooks=hooks))
    except Exception as error:
        return f"raised {type(error).__name__}"
    return next(line for line in lines if line.startswith("PostActing")).removeprefix("PostActing t1 ")


def _made(way: str, answer: str, options: dict[str, Any]) -> Form:
    hook = Form(WAYS[way], ANSWERS[answer])
    for name, value in options.items():
        setattr(hook, name, value)
    return hook


def _possible(way: str, answer: str, options: dict[str, Any]) -> bool:
    if way == "Future" and options.get("in_thread"):
        return False  # there is no loop in that thread to make one
    # A foreign Observable knows no cancellation as an error: reactivex lets it pass by its operators.
    return not (answer == "a cancellation of its own" and "foreign" in way)


def cases() -> Iterator[Any]:
    """Each option with each answer; outside a CI every other one with a listener, and the others without."""
    for (row, option), (column, answer), recorded in product(enumerate(OPTIONS), enumerate(ANSWERS), (False, True)):
        if THOROUGH or option == "none" or (row + column) % 2 == recorded:
            yield pytest.param(option, answer, recorded, id=f"{option}-{answer}-{'recorded' if recorded else 'plain'}")


@pytest.mark.parametrize(("option", "answer", "recorded"), [*cases()])
async def test_an_answer_means_the_same_in_every_form(option: str, answer: str, recorded: bool) -> None:
    """The option decides the effect of an answer; its form, and a listener, change nothing."""
    options, expected = OPTIONS[option]
    ways = WAYS if THOROUGH or option == "none" else MOST_DIFFERENT
    came = {
        way: await _result([_made(way, answer, options), *([Listener()] if recorded else [])])
        for way in ways
        if _possible(way, answer, options)
    }
    assert came == dict.fromkeys(came, expected[answer])


TOLD: dict[str, tuple[dict[str, str], str, str]] = {
    "the event": ({}, "", ""),
    "None": ({}, "", ""),
    "a changed event": ({"tool_use": "40"}, "", ""),
    "an assignment": ({"tool_use": "40"}, "", ""),
    "a verdict": ({}, "Deny(reason='no')", ""),
    "an answer": ({}, "Answer(value=7)", ""),
    "a veto": ({"tool_use": "40"}, "Deny(reason='no')", ""),
    "nonsense": ({"tool_use": "40"}, "", "HookContractError"),
    "an error": ({"tool_use": "40"}, "", "ValueError"),
    "a cancellation of its own": ({"tool_use": "40"}, "", "CancelledError"),
}
"""What a listener receives: the changes, the verdict, the error."""


def _told(call: HookCall) -> tuple[dict[str, str], str, str]:
    changes = {change.field: str(change.after.input["a"]) for change in call.changes}
    verdict = "" if call.verdict is None else repr(call.verdict)
    return changes, verdict, "" if call.error is None else type(call.error).__name__


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("shadow", [False, True], ids=["applied", "shadow"])
async def test_a_listener_is_told_the_same_in_every_form(answer: str, shadow: bool) -> None:
    """The effect of a hook, or of a shadow hook, is recorded in the same way for each form of its answer."""
    told: dict[str, Any] = {}
    for way in WAYS:
        if _possible(way, answer, {}) and not (shadow and answer == "a cancellation of its own"):
            listener = Listener()
            await _result([_made(way, answer, {"shadow": shadow}), listener])
            told[way] = _told(listener.calls[0])
    assert told == dict.fromkeys(told, TOLD[answer])


async def test_a_refusal_by_policy_is_told_with_its_cause() -> None:
    """`on_failure="deny"`: a listener receives the effective verdict, and the failure that caused it."""
    listener = Listener()
    await _result([_made("coroutine", "an error", {"on_failure": "deny"}), listener])
    assert _told(listener.calls[0])[1:] == (
        "Deny(reason='Form failed (ValueError), so the request was denied')",
        "ValueError",
    )


# ---- where a verdict is legal only sometimes, and where Deny is not


class Says(Hook):
    """Answers events of one class in a given way."""

    def __init__(self, kind: type, answer: Callable[[Any], Any], **options: Any) -> None:
        self.kind = kind
        self.answer = answer
        for name, value in options.items():
            setattr(self, name, value)

    async def on_event(self, event: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.answer(event) if isinstance(event, self.kind) else event


def _result_changed(answer: Any) -> Callable[[PostActing], Any]:
    def changed(event: PostActing) -> Any:
        event.tool_result = replace(event.tool_result, content="changed")
        if isinstance(answer, Exception):
            raise answer
        return answer

    return changed


@pytest.mark.parametrize("answer", [Deny("no"), Veto("no"), "yes", ValueError("broken")], ids=repr)
@pytest.mark.parametrize(
    ("option", "expected"),
    [("skip", "success '3'"), ("deny", "denied '(withheld: Says failed with {})'"), (None, "raised {}")],
    ids=["skip", "deny", "none"],
)
async def test_where_deny_is_illegal_it_is_a_failure(answer: Any, option: Any, expected: str) -> None:
    """On `PostActing` a Deny, a Veto, an illegal value and an error are failures alike: undone, withheld, or raised."""
    name = "ValueError" if isinstance(answer, ValueError) else "HookContractError"
    assert await _result([Says(PostActing, _result_changed(answer), on_failure=option)]) == expected.format(name)


async def test_again_on_the_summary_follows_the_policy() -> None:
    """A verdict that is illegal for this event, but legal for others of its type, is a failure: the hook's edits are
    undone.
    """

    def again(event: PostReasoning) -> Again:
        event.reasoning_result = Msg.assistant("changed")
        return Again("more")

    class Summaries(Says):
        events = (PostReasoning,)

        async def on_event(self, event: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
            return again(event) if event.purpose == "summary" else event

    def agent(**options: Any) -> Agent:
        model = ScriptedModel([[use("t1", "add", a=1, b=2)], "the summary"])
        return Agent("a", model, tools=[add], hooks=[Summaries(PostReasoning, again, **options)], max_iterations=1)

    assert (await agent(on_failure="skip").call("go")).text == "the summary"
    with pytest.raises(HookContractError, match=r"Allowed answers: .* Stop, Suspend \(this is the summary\)"):
        await agent().call("go")


# ---- observers


@pytest.mark.parametrize(
    ("kind", "answer", "got"),
    [
        (PreActing, Deny("no"), "Deny although it is an observer"),
        (PreActing, Veto("no"), "Veto('no') although it is an observer"),
        (PostActing, Stop("enough"), "Stop although it is an observer"),
        (PreReasoning, "yes", "str ('yes')"),
    ],
    ids=lambda value: getattr(value, "__name__", None) or repr(value),
)
async def test_a_verdict_of_an_observer_is_an_error(kind: type, answer: Any, got: str) -> None:
    """An observer decides nothing: its verdict is a contract error that names the legal answers, and has no effect."""
    told: list[BaseException] = []

    class Hears(Hook):
        events = (Error,)

        def on_event(self, event: Any) -> None:
            told.append(event.error)

    def say(event: Any) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    hook = Says(kind, say, observer=True)
    assert await _result([hook, Hears()]) == "success '3'"
    errors = [str(error) for error in told if isinstance(error, HookContractError)]
    name = kind.__name__
    expected = f"Hook 'Says (priority 100)' answered {name} with {got}. Allowed answers: the event, None."
    assert set(errors) == {expected}


@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
async def test_the_first_guard_that_vetoes_work_decides(later: bool) -> None:
    """The guards after it are not called, whatever the form of its answer; observers are."""
    called: list[str] = []

    @on(PreActing, guard=True, priority=10)
    def first(event: Any) -> Any:
        called.append("first")
        return asyncio.sleep(0, Deny("no")) if later else Deny("no")

    @on(PreActing, guard=True, priority=20)
    def second(event: Any) -> Any:
        called.append("second")
        return Deny("never")

    @on(PreActing, observer=True)
    def watches(event: PreActing) -> None:
        called.append(f"observer: {event.verdict}")

    agent = Agent("a", ScriptedModel([use("t1", "add", a=1, b=2), "so"]), tools=[add], hooks=[watches, second, first])
    await agent.call("go")
    assert called == ["first", f"observer: {Deny('no')}"]
    assert agent.session().messages[2].text == "Denied: no"


async def test_each_listener_sees_a_hook_begin() -> None:
    """A listener that makes a hook wait does not hide its beginning from the listeners after it."""
    begun: list[str] = []

    class Begins(ChangeListener):
        events = ()

        def __init__(self, label: str, delay: bool) -> None:
            self.label, self.delay = label, delay

        def on_begin(self, hook: Hook, event: Event) -> Awaitable[None] | None:
            begun.append(f"{self.label} {hook.name}")
            return asyncio.sleep(0) if self.delay else None

        def on_call(self, call: HookCall) -> None:
            pass

    @on(PreCall)
    def greet(_: PreCall) -> None:
        begun.append("greets")

    listeners = [Begins("first", False), Begins("second", True), Begins("third", True), Begins("fourth", False)]
    agent = Agent("a", ScriptedModel(["Hi"]), hooks=[greet, *listeners], default_hooks=())
    await agent.call("Go")
    assert begun == [*[f"{listener.label} greet" for listener in listeners], "greets"]
