"""Typed answers: what a call is to give (`Output`), how the model is asked for it, and what is held against it.

An answer in a form is policy, and so it is hooks around the loop, which knows nothing of it (`docs/typed-answers.md`).
"""

from agentflow.output.answer import Answered, Given
from agentflow.output.hooks import AskForOutput, JudgeOutput
from agentflow.output.output import NO_OUTPUT, Output, OutputLike, Way, output_of
from agentflow.output.partials import Partial

__all__ = [
    "NO_OUTPUT",
    "Answered",
    "AskForOutput",
    "Given",
    "JudgeOutput",
    "Output",
    "OutputLike",
    "Partial",
    "Way",
    "output_of",
]
