"""`agentflow chat`: a conversation with an agent in a terminal.

Rules:

1. Ctrl-C during a call ends the call; at the prompt it ends the program, as Ctrl-D does.
2. A call that fails is one red line; the conversation goes on.
3. A call that waits for a person asks that person.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Mapping
from typing import assert_never

from agentflow.agent.agent import Agent
from agentflow.agent.agent_flux import AgentFlux
from agentflow.cli.calls import call_loop, interrupting, read_events
from agentflow.cli.failures import CommandError, code_of
from agentflow.cli.phrases import call_text, plural, shorten, speech
from agentflow.cli.screen import Screen
from agentflow.errors import AgentFlowError, ScriptError
from agentflow.ground.shown import described, printable
from agentflow.loop.session import Session
from agentflow.messages import Pending
from agentflow.verdicts import Answer, Approve, Deny, Resolution

with contextlib.suppress(ImportError):
    import readline as readline

__all__ = ["Chat"]

_HELP = "/history shows the conversation, /exit (or Ctrl-D) ends it, Ctrl-C interrupts a call."


class Chat:
    """A conversation.

    Args:
        agent: With whom.
        session: In which session; None is the agent's own conversation.
        screen: Where to.
    """

    def __init__(self, agent: Agent, session: str | None, screen: Screen) -> None:
        self._agent = agent
        self._session: Session = agent.session(session)
        self._screen = screen
        self._asks = sys.stdin.isatty()

    def talk(self) -> None:
        """Read and answer until the user ends it."""
        if self._asks:
            self._screen.say(f"You talk with {self._agent.name}. {_HELP}", "dim")
        with call_loop() as runner, contextlib.suppress(EOFError):
            try:
                runner.run(self._agent.history(self._session))  # it may wait for a decision since another day
            except AgentFlowError as error:
                raise CommandError(str(error), code_of(error)) from error
            while True:
                if self._session.pending:
                    self._call(runner, self._agent.resume_stream(self._session, self._decisions()))
                    continue
                line = self._read("you> ")
                if line.startswith("/"):
                    if not self._command(line.strip()):
                        break
                elif line.strip():
                    self._call(runner, self._agent.stream(line, session=self._session))

    def _read(self, prompt: str) -> str:
        """The next line.

        Raises:
            EOFError: Ctrl-D, Ctrl-C, or the end of the input.
        """
        try:
            return input(printable(prompt) if self._asks else "")
        except KeyboardInterrupt:
            raise EOFError from None
        finally:
            # Whoever ends it leaves the cursor behind the prompt.
            if self._asks and sys.exc_info()[0] is not None:
                self._screen.say("")

    def _call(self, runner: asyncio.Runner, events: AgentFlux) -> None:
        self._screen.next_call()
        try:
            with interrupting(self._agent, self._session):
                runner.run(read_events(events, self._screen.show))
        except (
            Exception,
            ScriptError,
        ) as error:  # any: a conversation outlives whatever a call, a hook or a tool raised
            self._screen.end()
            self._screen.say(f"✗ {described(error)}", "red")
        else:
            self._screen.summary_line()
        finally:
            self._screen.end()

    def _command(self, line: str) -> bool:
        """Do what a line with a slash says; False: end."""
        if line in ("/exit", "/quit"):
            return False
        if line == "/history":
            messages = self._session.messages
            for msg in messages:
                self._screen.say(f"{msg.role:<10}{speech(msg).replace(chr(10), chr(10) + ' ' * 10)}")
            self._screen.say(f"{plural(len(messages), 'message')} in session {self._session.id!r}", "dim")
            return True
        self._screen.say(_HELP if line == "/help" else f"There is no command {shorten(line, 40)!r}. {_HELP}", "dim")
        return True

    def _decisions(self) -> Mapping[str, Resolution]:
        """Ask the user what a suspended call waits for."""
        decisions: dict[str, Resolution] = {}
        for wait in self._session.pending:
            decision = self._decide(wait)
            if decision is not None:
                decisions[wait.id] = decision
        return decisions

    def _decide(self, wait: Pending) -> Resolution | None:
        what = call_text(wait.tool_use, 100) if wait.tool_use is not None else repr(wait.id)
        match wait.kind:
            case "parked":  # nothing to decide, but it must not go on unasked: it may park again
                self._read(f"the call waits{_why(wait)}; Enter lets it go on ")
                return None
            case "external":
                return Answer(self._read(f"result of {what}{_why(wait)}: "))
            case "approval":
                answer = self._read(f"may it run {what}?{_why(wait)} [y/N] ").strip().lower()
                return Approve() if answer in ("y", "yes") else Deny("the user said no")
            case _:
                assert_never(wait.kind)


def _why(wait: Pending) -> str:
    return f" ({shorten(str(wait.request), 100)})" if wait.request is not None else ""
