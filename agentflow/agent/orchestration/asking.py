"""The tools that run workflow steps of agents, and the race between several agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from agentflow.agent.agent import Agent
from agentflow.agent.arguments import ResumeOptions, set_wrapped_agent
from agentflow.agent.as_tool import full_agent
from agentflow.agent.orchestration.steps import Group, Step
from agentflow.errors import ToolError
from agentflow.hooks.injections import before_deciding
from agentflow.loop.output.output import Output
from agentflow.loop.output.replying import text_of
from agentflow.loop.run import RunBase, current_turn
from agentflow.loop.session import Session
from agentflow.tools.code_names import found_by_name
from agentflow.tools.tool import Tool, tool
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.messages import Msg, Reply, ToolResultBlock, tool_result
from agentflow.vocabulary.saving.codec import msg_from_dict


class Race:
    """Several agents that received the same input: the first answer wins.

    Args:
        winner: The agent that has answered already, if there is one.
    """

    def __init__(self, winner: str = "") -> None:
        self.winner = winner
        self._running: list[Session] = []

    def enter(self, session: Session) -> None:
        """Add the session of one more agent."""
        self._running.append(session)

    def won(self, name: str) -> None:
        """Set the winner, and interrupt the other agents."""
        self.winner = name
        for session in self._running:
            session.interrupt(f"{name} was first")

    def refuse(self) -> None:
        """Refuse to continue if the race has a winner.

        Raises:
            ToolError: Another agent has won.
        """
        if self.winner:
            raise ToolError(f"{self.winner} was first.")


@dataclass
class Live:
    """The steps of the open round by the ids of their calls. Not stored with a session; a replay restores them."""

    def __post_init__(self) -> None:
        self.steps: dict[str, Step[Any]] = {}
        self.races = False
        self._race: Race | None = None
        self._call_id = ""

    def begin(self, group: Group[Any], ids: Sequence[str]) -> None:
        """Assign calls to the steps of a group."""
        self.steps = dict(zip(ids, group.steps, strict=True))
        self.races, self._race = group.kind == "race", None

    def with_winner(self, results: tuple[ToolResultBlock, ...]) -> tuple[ToolResultBlock, ...]:
        """Return the results of a race's round. If an agent has won, the suspended calls become errors."""
        first = next((result.name for result in results if result.state == "success"), None)
        if first is None:
            return results
        return tuple(
            [
                tool_result(result.tool_use_id, result.name, f"{first} was first.", "error")
                if result.state == "suspended"
                else result
                for result in results
            ]
        )

    def race(self, run: RunBase) -> Race | None:
        """Return the race, if the round is one. Each call that continues the round has a separate race object."""
        # A race that continues after a restart may have a recorded winner.
        if self.races and (self._race is None or self._call_id != run.call_id):
            first = next((done.name for done in run.machine.round.finished.values() if done.state == "success"), "")
            self._race, self._call_id = Race(first), run.call_id
        return self._race


def asking_tool(agent: Agent[Any], pending: Callable[[RunContext], Live]) -> Tool[..., Any]:
    """Return the tool that runs the steps of an agent.

    Args:
        agent: The agent.
        pending: The steps of the open round.
    """
    own = full_agent(agent)

    async def ask(message: str | list[dict[str, Any]], context: RunContext, conversation: bool = False) -> str | Msg:
        place = current_turn.get()
        assert place is not None
        live = pending(context)
        step = live.steps.get(place.use.id)
        content = message if isinstance(message, str) else [msg_from_dict(data) for data in message]
        session: list[Session] = []
        race = live.race(place.run)

        def keep_session(new_session: Session) -> None:
            session.append(new_session)
            if race is not None:
                race.enter(new_session)

        async def run_agent() -> str | Msg:
            output, options = (None, ResumeOptions()) if step is None else (step.output, step.options)
            reply = await own.call_within(
                content, output, conversation=conversation, on_session=keep_session, **options
            )
            if step is not None and step.answered is not None:
                return step.answered(reply, session[0].messages)
            # Called even if the reply has data, because it raises an error for a call without an answer.
            text = answer_of(agent.name, reply, agent.output if output is None else output)
            return reply if reply.data else text

        return await run_agent() if race is None else await _raced(race, agent.name, run_agent)

    set_wrapped_agent(ask, own)
    about = agent.description or f"Ask the agent {agent.name}."
    # Idempotent, since the agent continues its own session after a crash.
    decorate = tool(name=agent.name, description=about, type=own.strictest, timeout=None, idempotent=True)
    return decorate(found_by_name(ask))


async def _raced(race: Race, name: str, run_agent: Callable[[], Awaitable[str | Msg]]) -> str | Msg:
    race.refuse()
    try:
        answer = await run_agent()
        await before_deciding()
    except Exception:
        # another agent may have answered first, and then this one must not wait for a person any longer
        await before_deciding()
        race.refuse()
        raise
    race.refuse()
    race.won(name)
    return answer


def answer_of(name: str, reply: Reply[Any], output: Output[Any] | None = None) -> str:
    """Return an answer as text: the output that the call has validated, or else the reply's text.

    Raises:
        ToolError: The call ended without an answer.
    """
    if reply.outcome in ("completed", "limited"):
        return text_of(reply, output)
    raise ToolError(f"Agent {name!r} did not answer (outcome {reply.outcome!r}): {reply.text or reply.outcome}")
