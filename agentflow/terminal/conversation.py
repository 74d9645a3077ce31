"""`agent.chat()` and `agentflow chat`: chat with an agent in a terminal.

Rules:

1. Ctrl-C during a call interrupts the call; at the prompt it ends the conversation, like Ctrl-D.
2. A failed call is one red line; the conversation continues.
3. If a call waits for a person, the user is asked.
4. A call that a crash or a shutdown interrupted is continued first.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Mapping
from functools import partial
from typing import TextIO, assert_never, cast

from agentflow._support.shown import described
from agentflow.agent.agent import Agent
from agentflow.agent.agent_flux import AgentFlux
from agentflow.errors import ScriptError
from agentflow.hooks.named import HookSource
from agentflow.loop.session import Session
from agentflow.terminal.console import follow
from agentflow.terminal.lines import SAY, Lines, ProgramLines, standard_input
from agentflow.terminal.phrases import call_text, plural, shorten
from agentflow.terminal.printer import make_console
from agentflow.terminal.screen import Screen
from agentflow.vocabulary.messages import Pending
from agentflow.vocabulary.saving.plain import text_of
from agentflow.vocabulary.text import message_text
from agentflow.vocabulary.verdicts import Answer, Approve, Deny, Resolution

_HELP = "/history shows the conversation, /exit or Ctrl-D ends it, Ctrl-C interrupts a call."


async def chat(
    agent: Agent,
    lines: AsyncIterable[str] | None = None,
    *,
    session: str | Session | None = None,
    deps: object = None,
    hooks: HookSource = (),
    events: bool = False,
    children: bool = False,
    file: TextIO | None = None,
) -> None:
    """Chat with an agent until the user ends it; implements `agent.chat()`.

    Args:
        agent: The agent.
        lines: The user's input, including answers to questions; by default read from standard input.
        session: The session; by default the agent's own conversation.
        deps: The `deps` of each call, as in `agent.call`.
        hooks: Hooks added to each call.
        events: Whether to print a line for every event.
        children: Whether to show the events of sub-agents too.
        file: The output; standard output by default.

    Raises:
        AgentFlowError: The session cannot be loaded.

    Example:
        >>> await chat(agent, read_lines())
    """
    screen = Screen(make_console(file), events=events, children=children)
    source = standard_input() if lines is None else ProgramLines(lines, lambda line: screen.say(line, "bold"))
    conversation = session if isinstance(session, Session) else agent.session(session)
    await agent.history(conversation)  # loads the session, which may wait for a decision
    await _Chat(agent, conversation, screen, source, deps, hooks).talk()


class _Chat:
    """A conversation in the terminal."""

    def __init__(
        self, agent: Agent, session: Session, screen: Screen, lines: Lines, deps: object, hooks: HookSource
    ) -> None:
        self._agent = agent
        self._session = session
        self._screen = screen
        self._lines = lines
        self._deps = deps
        self._hooks = hooks

    async def talk(self) -> None:
        """Read and answer until the user ends the conversation."""
        if self._lines.person:
            self._screen.say(f"Chatting with {self._agent.name}. {_HELP}", "dim")
        try:
            if self._session.status == "unfinished":
                self._screen.say("The last call was interrupted by a crash or a shutdown. It continues.", "dim")
                await self._call(self._resumed({}))
            while True:
                if self._session.pending:
                    await self._call(self._resumed(await self._decisions()))
                    continue
                line = await self._lines.read(SAY)
                if line.startswith("/"):
                    if not self._command(line.strip()):
                        break
                elif line.strip():
                    await self._call(self._stream(line))
        except EOFError:
            pass

    def _stream(self, line: str) -> AgentFlux:
        return self._agent.stream(
            line, session=self._session, deps=self._deps, hooks=self._hooks, children=True, buffer=0
        )

    def _resumed(self, decisions: Mapping[str, Resolution]) -> AgentFlux:
        return self._agent.resume_stream(
            self._session, decisions, deps=self._deps, hooks=self._hooks, children=True, buffer=0
        )

    async def _call(self, events: AgentFlux) -> None:
        self._screen.next_call()
        try:
            await follow(events, self._screen, interrupt=partial(self._agent.interrupt, self._session, "Ctrl-C"))
        except (
            Exception,
            ScriptError,
        ) as error:  # the conversation continues after any error of a call, hook or tool
            self._screen.say(f"✗ {described(error)}", "red")
        else:
            self._screen.summary_line()

    def _command(self, line: str) -> bool:
        """Run a slash command; return False to end the conversation."""
        if line in ("/exit", "/quit"):
            return False
        if line == "/history":
            messages = self._session.messages
            for msg in messages:
                self._screen.say(f"{msg.role:<10}{message_text(msg).replace(chr(10), chr(10) + ' ' * 10)}")
            self._screen.say(f"{plural(len(messages), 'message')} in session {self._session.id!r}", "dim")
            return True
        self._screen.say(_HELP if line == "/help" else f"Unknown command {shorten(line, 40)!r}. {_HELP}", "dim")
        return True

    async def _decisions(self) -> Mapping[str, Resolution]:
        """Ask the user for the decisions of a suspended call."""
        decisions: dict[str, Resolution] = {}
        for wait in self._session.pending:
            decision = await self._decide(wait)
            if decision is not None:
                decisions[wait.id] = decision
        return decisions

    async def _decide(self, wait: Pending) -> Resolution | None:
        what = call_text(wait.tool_use, 100) if wait.tool_use is not None else repr(wait.id)
        match wait.kind:
            case "parked":  # nothing to decide, but ask before resuming: the call may be parked again
                await self._lines.read(f"the call waits{_reason_for(wait)}; press Enter to continue ")
                return None
            case "external":
                return Answer(await self._lines.read(f"result of {what}{_reason_for(wait)}: "))
            case "approval":
                answer = (await self._lines.read(f"Run {what}?{_reason_for(wait)} [y/N] ")).strip().lower()
                return Approve() if answer in ("y", "yes") else Deny("the user refused")
            case _:
                assert_never(wait.kind)


def _reason_for(wait: Pending) -> str:
    use = wait.tool_use
    reason = request = cast("object", wait.request)
    if isinstance(request, Mapping) and use is not None:
        shown = {"tool": use.name, "input": use.input}  # shown by the question already
        items = cast("Mapping[str, object]", request).items()
        more = {key: value for key, value in items if key not in shown or value != shown[key]}
        reason = more["reason"] if more.keys() == {"reason"} else more or None
    return "" if reason is None else f" ({shorten(text_of(reason), 100)})"
