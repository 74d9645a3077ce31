"""Test a hook with a single event: fire it, and check the resulting event and verdict."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Generic, NamedTuple, TypeVar

from agentflow.agent.agent import Agent
from agentflow.agent.as_tool import full_agent
from agentflow.hooks.chain import NoRun, run_chain
from agentflow.hooks.hook_set import FullHookSet, full_hooks
from agentflow.hooks.named import HookSource, hooks_of
from agentflow.loop.call import Call
from agentflow.loop.run import RunSettings
from agentflow.loop.session import Session, full_session
from agentflow.testing.scripted import ScriptedModel
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.events import Event
from agentflow.vocabulary.events.base import frame_of
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.verdicts import Verdict

E = TypeVar("E", bound=Event)


class FireResult(NamedTuple, Generic[E]):
    """The result of firing an event.

    Attributes:
        event: The sealed event, after the hooks.
        verdict: The verdict of the hooks, if any.
    """

    event: E
    verdict: Verdict | None


async def fire(hook: HookSource, event: E, *, context: RunContext | None = None) -> FireResult[E]:
    """Pass an event through hooks, as a call would.

    Args:
        hook: The hook, or any other value for an agent's `hooks=`; the options of hooks (`tools`, `guard`, `timeout` …) apply.
        event: The event, which is not changed.
        context: The `event.context` for hooks; by default the context of the event, or a new one.

    Returns:
        The event after the hooks, and the verdict.

    Raises:
        Exception: The exception of a hook, even with `on_failure="skip"`; with `"deny"` it becomes a verdict.

    Example:
        >>> no = before_llm(lambda event: Deny("not today"))
        >>> event, verdict = await fire(no, PreReasoning(input_messages=[Msg.user("Hi")]))
        >>> verdict
        Deny(reason='not today')
    """
    hooks = FullHookSet(hooks_of(hook))
    kind = event.sealed_form
    if context is None and frame_of(event) is None:  # `event.context` would raise
        context = run_context()
    shown = event.replace() if context is None else event.within(context)
    chain = hooks.chain(kind)
    if chain is None or not chain.calls:  # `run_chain` seals an event only after editing hooks
        object.__setattr__(shown, "__class__", kind)
    if chain is not None:
        pending = run_chain(chain, shown, NoRun())
        if pending is not None:
            await pending
    return FireResult(shown, None if shown.decision is None else shown.decision.verdict)


def run_context(
    *,
    agent: Agent | None = None,
    deps: object = None,
    history: Iterable[Msg] = (),
) -> RunContext:
    """Create a context without an active call, for events that are built by hand.

    Args:
        agent: The agent; by default, one with a model that replies "ok" to `context.complete`.
        deps: The objects for `context.deps(T)`.
        history: The conversation so far.

    Example:
        >>> run_context(deps=["db"]).deps(list)
        ['db']
    """
    agent = agent or Agent("test", ScriptedModel(lambda request: "ok"))
    config = full_agent(agent).config
    session = full_session(Session.fresh(messages=tuple(history)))
    settings = RunSettings(config.options, deps)
    run = Call(config, full_hooks(agent.hooks), session, config.new_id("run_"), settings)
    return run.context
