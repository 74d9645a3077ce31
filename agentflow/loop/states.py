"""The states of a session and the transitions between them: states × facts → next state, as data.

`python -m agentflow.loop.diagram` prints the table on the page "Design".

Rules:

1. A fact without an entry in a state's row is illegal in that state.
2. If the content of a fact determines the next state, the entry contains a state for each case, by name; `machine.py`
   decides which case applies.
3. The machine takes every next state from here, both when it applies a fact and when it checks a series of facts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Final, Literal, TypeAlias

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
from agentflow.vocabulary.messages import Msg

__all__ = ["TRANSITIONS", "State", "legal_in"]


class State(Enum):
    """The state of a session."""

    USER_INPUT = "user input"
    ASSISTANT = "assistant"
    TOOL_EXECUTION = "tool execution"
    RESPONSE = "response"
    SUSPENDED = "suspended"

    row: dict[type, Callable[[Any, Any], tuple[Msg, ...]]]
    """The legal facts, with the machine's function that folds each."""


USER_INPUT: Final = State.USER_INPUT
ASSISTANT: Final = State.ASSISTANT
TOOL_EXECUTION: Final = State.TOOL_EXECUTION
RESPONSE: Final = State.RESPONSE
SUSPENDED: Final = State.SUSPENDED

ReplyCase: TypeAlias = Literal["with tool calls", "without tool calls", "rejected"]
RoundCase: TypeAlias = Literal["without a Stop", "with a Stop"]
ResumeCase: TypeAlias = Literal["in a round", "between rounds", "with the answer"]
CloseCase: TypeAlias = Literal["as suspended", "ended"]

AFTER_OPENING: Final = ASSISTANT
AFTER_SUSPENDING: Final = SUSPENDED
AFTER_REPLY: Final[dict[ReplyCase, State]] = {
    "with tool calls": TOOL_EXECUTION,
    "without tool calls": RESPONSE,
    "rejected": ASSISTANT,
}
AFTER_ROUND: Final[dict[RoundCase, State]] = {"without a Stop": ASSISTANT, "with a Stop": RESPONSE}
AFTER_RESUME: Final[dict[ResumeCase, State]] = {
    "in a round": TOOL_EXECUTION,
    "between rounds": ASSISTANT,
    "with the answer": RESPONSE,
}
AFTER_CLOSE: Final[dict[CloseCase, State]] = {"as suspended": SUSPENDED, "ended": USER_INPUT}

TRANSITIONS: Final[Mapping[State, Mapping[type[Fact], State | Mapping[Any, State]]]] = {
    USER_INPUT: {
        SessionBegan: USER_INPUT,
        CallOpened: AFTER_OPENING,
        Injected: USER_INPUT,
        Compacted: USER_INPUT,
        StateKept: USER_INPUT,
    },
    ASSISTANT: {
        Reasoned: AFTER_REPLY,
        RoundSuspended: AFTER_SUSPENDING,
        CallResumed: ASSISTANT,
        CallClosed: USER_INPUT,
        Injected: ASSISTANT,
        Compacted: ASSISTANT,
        StateKept: ASSISTANT,
    },
    TOOL_EXECUTION: {
        ToolDecided: TOOL_EXECUTION,
        ToolStarted: TOOL_EXECUTION,
        ToolFinished: TOOL_EXECUTION,
        RoundClosed: AFTER_ROUND,
        RoundSuspended: AFTER_SUSPENDING,
        CallResumed: TOOL_EXECUTION,
        Injected: TOOL_EXECUTION,
        Compacted: TOOL_EXECUTION,
        StateKept: TOOL_EXECUTION,
    },
    RESPONSE: {
        RoundSuspended: AFTER_SUSPENDING,
        CallResumed: RESPONSE,
        CallClosed: USER_INPUT,
        Injected: RESPONSE,
        Compacted: RESPONSE,
        StateKept: RESPONSE,
    },
    SUSPENDED: {
        RoundClosed: AFTER_ROUND,
        CallResumed: AFTER_RESUME,
        CallClosed: AFTER_CLOSE,
        Injected: SUSPENDED,
        Compacted: SUSPENDED,
        StateKept: SUSPENDED,
    },
}


def legal_in(kind: type[Fact]) -> list[State]:
    """Return the states in which a fact is legal."""
    return [state for state, row in TRANSITIONS.items() if kind in row]
