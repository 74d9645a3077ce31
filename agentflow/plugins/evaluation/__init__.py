"""Evaluators: checks of calls, by code or by a judging model, in tests and in production."""

from agentflow.plugins.evaluation.evaluators import Contains, Matches, StaysWithin, UsesTools
from agentflow.plugins.evaluation.judge import Judge
from agentflow.plugins.evaluation.online import OnlineEvaluation
from agentflow.plugins.evaluation.trial import Case, Check, Grade, Trial, graded, name_of

__all__ = [
    "Case",
    "Check",
    "Contains",
    "Grade",
    "Judge",
    "Matches",
    "OnlineEvaluation",
    "StaysWithin",
    "Trial",
    "UsesTools",
    "graded",
    "name_of",
]
