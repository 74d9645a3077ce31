"""A hook under a unit test: fire one event at it, see what it made of the event and what it decided."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Generic, NamedTuple, TypeVar

from agentflow.agent.agent import Agent
from agentflow.agent.as_tool import full_agent
from agentflow.context import RunContext
from agentflow.events import Event
from agentflow.hooks.chain import NoRun, run_chain
from agentflow.hooks.hook_set import FullHookSet, full_hooks
from agentflow.hooks.named import HookSource, hooks_of
from agentflow.loop.call import Call
from agentflow.loop.session import Session, full_session
from agentflow.messages import Msg
from agentflow.testing.scripted import ScriptedModel
from agentflow.verdicts import Verdict

__all__ = ["Fired", "fire", "run_context"]

E = TypeVar("E", bound=Event)


class Fired(NamedTuple, Generic[E]):
    """What became of an event.

    Attributes:
        event: The event as hooks left it, sealed.
        verdict: What they decided; None: it goes on.
    """

    event: E
    verdict: Verdict | None


async def fire(hook: HookSource, event: E, *, context: RunContext | None = None) -> Fired[E]:
    """Pass an event that was built by hand through hooks, as a call would.

    Args:
        hook: The hook, or whatever else an agent takes as `hooks=`; their options (`tools`, `guard`, `timeout` …) count.
        event: The event; it is left as it is.
        context: What hooks read as `event.context`; a fresh one where the event has none.

    Returns:
        The event as they left it, and the verdict.

    Raises:
        Exception: What a hook has raised, whatever its `on_failure` says but `"deny"`.

    Example:
        >>> no = before_llm(lambda event: Deny("not today"))
        >>> event, verdict = await fire(no, PreReasoning(input_messages=[Msg.user("Hi")]))
        >>> verdict
        Deny(reason='not today')
    """
    hooks = FullHookSet(hooks_of(hook))
    kind = event.sealed_form
    if context is None and event._frame is None:  # pyright: ignore[reportPrivateUsage] - asking for it would raise
        context = run_context()
    shown = event.replace() if context is None else event.within(context)
    chain = hooks.chain(kind)
    if chain is not None:
        waits = run_chain(chain, shown, NoRun())
        if waits is not None:
            await waits
    object.__setattr__(shown, "__class__", kind)  # sealed, also where nobody listens
    return Fired(shown, None if shown.decision is None else shown.decision.verdict)


def run_context(
    *,
    agent: Agent | None = None,
    deps: object = None,
    history: Iterable[Msg] = (),
) -> RunContext:
    """The context of a call that does nothing: for events that are built by hand.

    Args:
        agent: Whose call it is; one with a model that says "ok" by default, for `context.complete`.
        deps: What `context.deps(T)` finds.
        history: The conversation so far.

    Example:
        >>> run_context(deps=["db"]).deps(list)
        ['db']
    """
    agent = agent or Agent("test", ScriptedModel(lambda request: "ok"))
    config = full_agent(agent).config
    session = full_session(Session.fresh(messages=tuple(history)))
    none: Any = None
    run = Call(
        config,
        full_hooks(agent.hooks),
        session,
        config.new_id("run_"),
        config.options,
        deps,
        none,
        "",
        none,
        none,
        False,
    )
    return run.context
