"""Typed answers: the output of a call (`Output`), how the model is asked for it, and how an answer is validated.

A typed answer is policy, so it is implemented as hooks around the loop, which is unaware of it
(`docs/typed-answers.md`).
"""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily

if TYPE_CHECKING:
    from agentflow.loop.output.answer import AcceptedAnswers, AnswerState
    from agentflow.loop.output.hooks import AskForOutput, JudgeOutput
    from agentflow.loop.output.output import NO_OUTPUT, Output, OutputLike, Way, output_of
    from agentflow.loop.output.partials import Partial

__all__ = [
    "NO_OUTPUT",
    "AcceptedAnswers",
    "AnswerState",
    "AskForOutput",
    "JudgeOutput",
    "Output",
    "OutputLike",
    "Partial",
    "Way",
    "output_of",
]

if not TYPE_CHECKING:  # otherwise a type checker would accept any name
    __getattr__, __dir__ = lazily(
        __name__,
        {
            ".answer": "AcceptedAnswers AnswerState",
            ".hooks": "AskForOutput JudgeOutput",
            ".output": "NO_OUTPUT Output OutputLike Way output_of",
            ".partials": "Partial",
        },
    )
