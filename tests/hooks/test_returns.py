"""Every form in which a hook may answer an event, and its effect."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import reactivex
from eventlog import streamed, use
from toolbox import ONE, add, agent_of

from agentflow import (
    Agent,
    Deny,
    Flux,
    Hook,
    Mono,
    Msg,
    PostCall,
    PostReasoning,
    PreActing,
    PreCall,
    PreReasoning,
    Veto,
    on,
)
from agentflow.errors import HookContractError
from agentflow.testing import ScriptedModel


class Form(Hook):
    """Answers `PreActing` in a given form."""

    def __init__(self, form: Callable[[PreActing], Any]) -> None:
        self.form = form

    def on_event(self, event: Any) -> Any:
        return self.form(event) if isinstance(event, PreActing) else event


def _edited(event: PreActing) -> PreActing:
    return event.replace(tool_use=event.tool_use.replace(input={"a": 40, "b": 2}))


def _assign(event: PreActing) -> None:
    event.tool_use = event.tool_use.replace(input={"a": 40, "b": 2})


async def _later(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


def _future(value: Any) -> asyncio.Future[Any]:
    future = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(future.set_result, value)
    return future


def _assign_and(answer: Any) -> Callable[[PreActing], Any]:
    def form(event: PreActing) -> Any:
        _assign(event)
        return answer

    return form


PASS: dict[str, Callable[[PreActing], Any]] = {
    "the event": lambda event: event,
    "None": lambda event: None,
    "coroutine of the event": _later,
    "coroutine of None": lambda event: _later(None),
    "Mono.just": Mono.just,
    "Mono.just(None)": lambda event: Mono.just(None),
    "Mono.defer": lambda event: Mono.defer(lambda: Mono.just(event)),
    "empty Mono": lambda event: Mono.empty(),
    "Mono over time": lambda event: Mono.just(event).delay(0),
    "Flux": Flux.just,
    "foreign Observable": reactivex.just,
    "empty foreign Observable": lambda event: reactivex.empty(),
    "Future": _future,
    "coroutine of a Mono": lambda event: _later(Mono.just(event)),
}
EDIT: dict[str, Callable[[PreActing], Any]] = {
    "assigned, None": _assign,
    "assigned, empty Mono": _assign_and(Mono.empty()),
    "replaced": _edited,
    "coroutine of a replaced one": lambda event: _later(_edited(event)),
    "Mono.just of a replaced one": lambda event: Mono.just(_edited(event)),
    "Mono.defer of a replaced one": lambda event: Mono.defer(lambda: Mono.just(_edited(event))),
    "foreign Observable of a replaced one": lambda event: reactivex.just(_edited(event)),
    "Future of a replaced one": lambda event: _future(_edited(event)),
    "built by hand": lambda event: PreActing(tool_use=_edited(event).tool_use),
}


def _raises(event: PreActing) -> Any:
    raise Veto("no")


async def _raises_later(event: PreActing) -> Any:
    raise Veto("no")


VETO: dict[str, Callable[[PreActing], Any]] = {
    "Deny": lambda event: Deny("no"),
    "coroutine of Deny": lambda event: _later(Deny("no")),
    "Mono.just(Deny)": lambda event: Mono.just(Deny("no")),
    "Mono.defer of Deny": lambda event: Mono.defer(lambda: Mono.just(Deny("no"))),
    "foreign Observable of Deny": lambda event: reactivex.just(Deny("no")),
    "Future of Deny": lambda event: _future(Deny("no")),
    "Mono.error(Veto)": lambda event: Mono.error(Veto("no")),
    "foreign error of Veto": lambda event: reactivex.throw(Veto("no")),
    "raise Veto": _raises,
    "raise Veto later": _raises_later,
}


async def _round(form: Callable[[PreActing], Any], **options: Any) -> list[str]:
    hook = Form(form)
    for name, value in options.items():
        setattr(hook, name, value)
    model = ScriptedModel([[use("t1", "add", a=1, b=2)], "end"])
    lines = await streamed(Agent("a", model, tools=[add], hooks=[hook]))
    return lines[5:7]


@pytest.mark.parametrize("form", PASS.values(), ids=PASS)
async def test_the_event_goes_on(form: Callable[[PreActing], Any]) -> None:
    """The event, None and an empty Mono, now or later, in any wrapping: the chain continues with the same event."""
    assert await _round(form) == ["PreActing t1:add(a=1, b=2)", "PostActing t1 success '3'"]


@pytest.mark.parametrize("form", EDIT.values(), ids=EDIT)
async def test_a_changed_event_goes_on(form: Callable[[PreActing], Any]) -> None:
    """Assignments count with None and an empty Mono; a changed event of the same type replaces the event."""
    assert await _round(form) == ["PreActing t1:add(a=40, b=2)", "PostActing t1 success '42'"]


@pytest.mark.parametrize("form", VETO.values(), ids=VETO)
@pytest.mark.parametrize("guard", [False, True], ids=["editor", "guard"])
async def test_a_veto_in_any_form(form: Callable[[PreActing], Any], guard: bool) -> None:
    """A verdict, now or later, in any wrapping, and Veto raised or signalled: the tool is denied."""
    assert await _round(form, guard=guard) == [
        "PreActing t1:add(a=1, b=2) -> Deny(Form)",
        "PostActing t1 denied 'Denied: no'",
    ]


@pytest.mark.parametrize(
    ("form", "got"),
    [
        (lambda event: "yes", "str ('yes')"),
        (lambda event: True, "bool (True)"),
        (lambda event: _later(False), "bool (False)"),
        (lambda event: Mono.just(0), "int (0)"),
        (lambda event: reactivex.just([]), "list ([])"),
        (lambda event: Deny, "the class Deny instead of a verdict object: Deny(...)"),
        (lambda event: int, "type (<class 'int'>)"),
    ],
)
async def test_anything_else_is_a_contract_error(form: Callable[[PreActing], Any], got: str) -> None:
    """Any other value is refused with hook, event, the value and the legal ones; truth values are no verdicts."""
    with pytest.raises(HookContractError) as caught:
        await _round(form)
    assert str(caught.value) == (
        f"Hook 'Form (priority 100)' answered PreActing with {got}. Allowed answers: the event, a changed PreActing, None, or "
        "a verdict: Deny, Answer, Suspend."
    )


async def test_an_event_of_another_type_is_a_contract_error() -> None:
    """An event of another type is no answer."""
    other = PreReasoning(input_messages=[Msg.user("x")])
    with pytest.raises(HookContractError, match="answered PreActing with PreReasoning"):
        await _round(lambda event: other)


async def test_a_replaced_event_is_seen_by_later_hooks() -> None:
    """A later hook gets the event as the hooks before it left it."""
    seen: list[Any] = []

    class First(Hook):
        priority = 1

        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreCall):
                return event.replace(input_messages=[Msg.user("changed")])
            return event

    class Second(Hook):
        def on_event(self, event: Any) -> Any:
            if isinstance(event, PreCall):
                seen.append(event.input_messages[0].text)
            return event

    model = ScriptedModel(["ok"])
    agent = Agent("a", model, hooks=[Second(), First()])
    await agent.call("original")
    assert seen == ["changed"]
    assert [msg.text for msg in model.requests[0].messages] == ["changed"]


async def test_an_observable_counts_by_its_first_value() -> None:
    """Of a stream of answers the first one counts, and the rest is not requested."""
    pulled: list[int] = []

    def form(event: PreActing) -> Any:
        async def answers() -> Any:
            pulled.append(1)
            yield Deny("first")
            pulled.append(2)
            yield event

        return Flux(answers)

    assert (await _round(form))[0] == "PreActing t1:add(a=1, b=2) -> Deny(Form)"
    assert pulled == [1]


async def test_an_own_mono_runs_in_the_callers_task() -> None:
    """A Mono of this library is awaited where the chain runs, without a task (only foreign ones are subscribed to)."""
    tasks: list[Any] = []

    async def answer() -> None:
        tasks.append(asyncio.current_task())

    def form(event: PreActing) -> Any:
        tasks.append(asyncio.current_task())
        return Mono(answer)

    await _round(form)
    assert tasks[0] is tasks[1]


async def test_a_hook_that_answers_nothing_changes_nothing() -> None:
    """None, an empty Mono and an empty stream mean: continue."""
    plain = await streamed(agent_of([ONE, "end"]))
    for empty in (lambda event: None, lambda event: Mono.empty(), lambda event: Mono.empty().as_flux()):
        assert await streamed(agent_of([ONE, "end"], on(PreCall, PreActing, PostReasoning, PostCall)(empty))) == plain
