"""The loop as a table: facts in, next action out. Pure: no I/O, no clock, no tasks.

Rules:

1. Tool dispatch never ends the loop: reasoning follows each round, unless a verdict stopped the call.
2. `max_iterations=N` allows N replies of the model, including rejected ones, and then one summary without tools.
3. An illegal fact raises and changes nothing. `check` detects it before the fact is written; `apply` accepts every fact
   that passed `check`.
4. The transcript is the fold of the facts. Apart from it, a machine stores the state of the open run, the fact that ended
   the last call, the current compaction and the session's typed state.
5. The legal facts of each state and their transitions are data (`loop/states.py`); their effects are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Never, cast

from agentflow._support.ids import derived_id
from agentflow.errors import UsageError
from agentflow.loop.states import (
    AFTER_CLOSE,
    AFTER_OPENING,
    AFTER_REPLY,
    AFTER_RESUME,
    AFTER_ROUND,
    AFTER_SUSPENDING,
    NO_ROUND,
    NOT_SUSPENDED,
    RESPONSE,
    SUSPENDED,
    TRANSITIONS,
    CloseCase,
    FoldedState,
    OpenRound,
    ReplyCase,
    ResumeCase,
    RoundCase,
    State,
    Suspension,
    legal_in,
)
from agentflow.vocabulary.facts import (
    CallClosed,
    CallOpened,
    CallResumed,
    Compacted,
    Fact,
    Injected,
    Reasoned,
    RoundClosed,
    RoundSuspended,
    SessionBegan,
    StateKept,
    ToolDecided,
    ToolFinished,
    ToolStarted,
)
from agentflow.vocabulary.messages import ContentBlock, Msg, TextBlock, ToolUseBlock, message, tool_result
from agentflow.vocabulary.transcript import Transcript

__all__ = ["Machine", "is_blank"]

_new_tuple = cast("Callable[..., OpenRound]", cast("Any", tuple).__new__)

_WITH_CALLS = AFTER_REPLY["with tool calls"]
_WITHOUT_CALLS = AFTER_REPLY["without tool calls"]
_NEXT_ROUND = AFTER_ROUND["without a Stop"]
_ENDED = AFTER_CLOSE["ended"]
SUPERSEDED = "Not run: this reply was superseded."


def is_blank(msg: Msg) -> bool:
    """Whether an assistant's message has no content to store or send: no tool call, no data, only blank text if any."""
    for block in msg.content:  # noqa: SIM110 - `all` with a generator takes four times as long
        if type(block) is not TextBlock or block.text.strip():
            return False
    return True


class Machine(FoldedState):
    """A session's state, folded from facts; see `FoldedState` for its fields."""

    __slots__ = ()

    @classmethod
    def from_facts(cls, facts: Iterable[Fact], messages: Iterable[Msg] = ()) -> Machine:
        """Fold facts into a machine. A run can continue after any prefix of its facts."""
        machine = cls(messages)
        for fact in facts:
            machine.apply(fact)
        return machine

    def apply(self, fact: Fact) -> tuple[Msg, ...]:
        """Apply a fact if it is legal.

        Returns:
            The messages that were stored with the fact but are not part of it: injections that waited for a legal place,
            and synthetic results of superseded calls.

        Raises:
            UsageError: The fact is not legal in this state.
        """
        return self.state.row[fact.__class__](self, fact)

    def check(self, *facts: Fact) -> None:
        """Refuse facts that are illegal in this order, before they are written. Nothing changes.

        At most one of them may be of a type that is not in `_COMPANIONS`: this check follows the changes of state, but no other
        effect that one fact has on the legality of the next.

        Raises:
            UsageError: A fact is illegal.
        """
        state = self.state
        if len(facts) > 1:
            leading = [type(fact).__name__ for fact in facts if type(fact) not in _COMPANIONS]
            if len(leading) > 1:
                raise UsageError(
                    f"Facts {' and '.join(leading)} cannot be written together. Write one after the other."
                )
        for n, fact in enumerate(facts):
            if n:
                state = self._next_state(state, facts[n - 1])
            if fact.__class__ not in state.row:
                raise _illegal_fact(type(fact), state)
            check = _CHECKS.get(fact.__class__)
            if check is not None:
                check(self, fact)

    def _next_state(self, state: State, fact: Fact) -> State:
        """Return the state after a legal fact."""
        to = TRANSITIONS[state][type(fact)]
        return to if isinstance(to, State) else to[_CASES[type(fact)](self, fact)]

    # ---- the effects of facts; an illegal fact raises before it changes anything

    def on_began(self, fact: SessionBegan) -> tuple[Msg, ...]:
        """Fold a `SessionBegan`."""
        self.check_began(fact)
        self.transcript = Transcript(fact.messages)
        return ()

    def on_opened(self, fact: CallOpened) -> tuple[Msg, ...]:
        """Fold a `CallOpened`."""
        run_id, call_id, messages, max_iterations, answer = fact
        # The input of most calls is one user message, which needs no check.
        if answer is not None or len(messages) != 1 or messages[0].role != "user":
            self.check_opened(fact)
        # Without `append`: a call can only be opened between rounds, at a place that is legal for every checked message.
        self.transcript.stored.extend(messages)
        self.run_id = run_id
        self.call_id = call_id
        self.max_iterations = max_iterations
        self.iteration = 0
        self.limited = False
        self.final = answer
        self.injected = ()
        self.state = AFTER_OPENING
        return ()

    def on_resumed(self, fact: CallResumed) -> tuple[Msg, ...]:
        """Fold a `CallResumed`."""
        self.call_id = fact.call_id
        if self.state is SUSPENDED:  # otherwise the run continues after a crash, with the earlier decisions
            self.suspension = Suspension(self.suspension.pending, dict(fact.decisions))
            self.state = AFTER_RESUME[_case_of_resume(self, fact)]
        return ()

    def on_reasoned(self, fact: Reasoned) -> tuple[Msg, ...]:
        """Fold a `Reasoned`."""
        msg, accepted = fact.message, fact.accepted
        # Most replies need only the check of their tool calls, which `ask` makes below.
        if not accepted or fact.summary or fact.run_id != self.run_id or msg.role != "assistant":
            self.check_reasoned(fact)
        uses: tuple[ToolUseBlock, ...] = ()
        if accepted:
            for block in msg.content:
                if type(block) is ToolUseBlock:
                    uses = self.transcript.ask(msg)  # raises if an id is not unique, before anything has changed
                    break
        self.iteration = fact.iteration
        self.stop = fact.stop
        self.injected = ()
        if uses:
            unfinished = {uses[0].id} if len(uses) == 1 else {use.id for use in uses}
            self.round = _new_tuple(OpenRound, ({}, {}, {}, unfinished))  # twice as fast as the constructor
            self.state = _WITH_CALLS
            return ()
        if fact.summary:
            self.limited = True
        if not accepted:
            return self._reject(fact)
        self.final = msg
        self.state = _WITHOUT_CALLS
        return ()

    def _reject(self, fact: Reasoned) -> tuple[Msg, ...]:
        """Store a rejected reply with synthetic results of its tool calls, and the messages that follow it up."""
        added: list[Msg] = []
        if not is_blank(fact.message):
            self.transcript.append(fact.message)
            if uses := fact.message.tool_uses:
                results = [tool_result(use.id, use.name, SUPERSEDED, "denied") for use in uses]
                # Derived from the fact, so that folding the same facts again results in the same history.
                closed, moved = self.transcript.close_round(results, derived_id(fact.message.id, "-superseded"))
                added = [closed, *moved]
        for msg in fact.follow_up:
            self.transcript.inject(msg)
        self.state = AFTER_REPLY["rejected"]
        return tuple(added)

    def on_tool_decided(self, fact: ToolDecided) -> tuple[Msg, ...]:
        """Fold a `ToolDecided`."""
        use_id = fact.tool_use_id
        if use_id not in self.round.unfinished:
            raise self.not_open_error(fact)
        self.round.decided[use_id] = fact
        return ()

    def on_tool_started(self, fact: ToolStarted) -> tuple[Msg, ...]:
        """Fold a `ToolStarted`."""
        use_id = fact.tool_use_id
        if use_id not in self.round.unfinished:
            raise self.not_open_error(fact)
        self.round.started[use_id] = fact.attempt
        if self.suspension.answers:  # an approval is valid only once
            self.suspension.answers.pop(use_id, None)
        return ()

    def on_tool_finished(self, fact: ToolFinished) -> tuple[Msg, ...]:
        """Fold a `ToolFinished`."""
        use_id = fact.tool_use_id
        if use_id not in self.round.unfinished:
            raise self.not_open_error(fact)
        self.round.unfinished.discard(use_id)
        self.round.finished[use_id] = fact.result
        if self.stop is None:  # the first Stop counts
            self.stop = fact.stop
        return ()

    def on_round_closed(self, fact: RoundClosed) -> tuple[Msg, ...]:
        """Fold a `RoundClosed`."""
        if fact.run_id != self.run_id:
            raise self.of_another_run(fact)
        _, moved = self.transcript.close_round(fact.results, fact.message_id)
        self.round = NO_ROUND
        self.suspension = NOT_SUSPENDED
        self.injected = ()
        stop = self.stop if fact.stop is None else fact.stop
        if stop is not None:
            self._answer_with(stop, fact.run_id)
            self.state = AFTER_ROUND["with a Stop"]
        else:
            self.state = _NEXT_ROUND
        return moved

    def _answer_with(self, reason: str, source: str) -> None:
        """Set the final message to a synthetic one with this reason, and with an id derived from `source`."""
        content: tuple[ContentBlock, ...] = (TextBlock(reason or "stopped"),)
        self.final = message("assistant", content, derived_id(source, "-stop"), {"synthetic": "stopped"})

    def on_round_suspended(self, fact: RoundSuspended) -> tuple[Msg, ...]:
        """Fold a `RoundSuspended`."""
        self.check_suspended(fact)  # before any change (rule 3)
        self.suspension = Suspension(fact.pending)
        self.state = AFTER_SUSPENDING
        self.injected = ()
        self.round = self.round._replace(decided={})  # after a resume, hooks decide again on calls without a result
        for wait in fact.pending:
            if wait.within in self.round.started:  # a tool with a suspended sub-agent starts again after a resume
                del self.round.started[wait.within]
        return ()

    def on_injected(self, fact: Injected) -> tuple[Msg, ...]:
        """Fold an `Injected`."""
        self.check_injected(fact)
        if fact.key is not None:
            self.injected = (*self.injected, fact.key)
        # The final message joins the transcript only when the call is closed, and these messages follow it.
        if self.state is RESPONSE or (self.state is SUSPENDED and self.final is not None):
            self.late = (*self.late, *fact.messages)
            return ()
        return tuple([msg for msg in fact.messages if self.transcript.inject(msg, fact.at)])

    def on_compacted(self, fact: Compacted) -> tuple[Msg, ...]:
        """Fold a `Compacted`."""
        self.compacted = (fact.until, fact.messages)
        return ()

    def on_state_kept(self, fact: StateKept) -> tuple[Msg, ...]:
        """Fold a `StateKept`."""
        self.state_kept = fact.values
        return ()

    def on_closed(self, fact: CallClosed) -> tuple[Msg, ...]:
        """Fold a `CallClosed`."""
        run_id, _, outcome, final = fact
        # By identity: most calls end with the unchanged reply, which was checked when it was folded.
        if final is not self.final or run_id != self.run_id or outcome == "suspended" or self.transcript.open_round:
            self.check_closed(fact)
            if outcome == "suspended":
                self.state = AFTER_CLOSE["suspended"]
                return ()
        if final is not None and not is_blank(final):
            self.transcript.stored.append(final)
        added = self.late
        if added:
            self.transcript.stored.extend(added)
            self.late = ()
        self.ended = fact
        self.final = None
        self.stop = None
        self.suspension = NOT_SUSPENDED
        self.state = _ENDED
        return added


def _illegal_fact(kind: type[Fact], state: State) -> UsageError:
    legal = ", ".join(sorted(legal_state.name for legal_state in legal_in(kind)))
    return UsageError(
        f"A fact {kind.__name__} is not legal in state {state.name}, only in {legal}. Check whether "
        "facts of two runs are mixed."
    )


# ---- the cases of facts that lead to different states


def _case_of_reply(machine: Machine, fact: Reasoned) -> ReplyCase:
    if not fact.accepted:
        return "rejected"
    return "with tool calls" if fact.message.tool_uses and not fact.summary else "without tool calls"


def _case_of_round(machine: Machine, fact: RoundClosed) -> RoundCase:
    return "without a Stop" if fact.stop is None and machine.stop is None else "with a Stop"


def _case_of_resume(machine: Machine, fact: CallResumed) -> ResumeCase:
    if machine.transcript.open_round:
        return "in a round"
    return "between rounds" if machine.final is None else "after the answer"


def _case_of_close(machine: Machine, fact: CallClosed) -> CloseCase:
    return "suspended" if fact.outcome == "suspended" else "ended"


_CASES: dict[type, Callable[[Machine, Any], str]] = {
    Reasoned: _case_of_reply,
    RoundClosed: _case_of_round,
    CallResumed: _case_of_resume,
    CallClosed: _case_of_close,
}


_COMPANIONS = (Injected, Compacted, StateKept, RoundSuspended)
"""The types of facts that can be written together with a fact of any type."""

_FOLDS: dict[type, Callable[[Machine, Any], tuple[Msg, ...]]] = {
    SessionBegan: Machine.on_began,
    CallOpened: Machine.on_opened,
    CallResumed: Machine.on_resumed,
    Reasoned: Machine.on_reasoned,
    ToolDecided: Machine.on_tool_decided,
    ToolStarted: Machine.on_tool_started,
    ToolFinished: Machine.on_tool_finished,
    RoundClosed: Machine.on_round_closed,
    RoundSuspended: Machine.on_round_suspended,
    Injected: Machine.on_injected,
    Compacted: Machine.on_compacted,
    StateKept: Machine.on_state_kept,
    CallClosed: Machine.on_closed,
}

_CHECKS: dict[type, Callable[[Machine, Any], None]] = {
    SessionBegan: Machine.check_began,
    CallOpened: Machine.check_opened,
    Reasoned: Machine.check_reasoned,
    ToolDecided: Machine.check_tool,
    ToolStarted: Machine.check_tool,
    ToolFinished: Machine.check_tool,
    RoundClosed: Machine.check_round,
    RoundSuspended: Machine.check_suspended,
    Injected: Machine.check_injected,
    CallClosed: Machine.check_closed,
}
"""The checks of a fact's content, in addition to the check that its type is legal in the state."""


class _StateRow(dict[type[Fact], Callable[[Machine, Any], tuple[Msg, ...]]]):
    """The functions that fold the legal facts of a state; a lookup of another fact raises `UsageError`."""

    def __init__(self, state: State) -> None:
        super().__init__({kind: _FOLDS[kind] for kind in TRANSITIONS[state]})
        self._state = state

    # Called only for an illegal fact, so a legal one costs one lookup and no check before it.
    def __missing__(self, kind: type[Fact]) -> Never:
        raise _illegal_fact(kind, self._state)


# Set here, since `states.py` cannot import the functions of the machine.
for _state in State:
    _state.row = _StateRow(_state)
