"""Evaluation: run cases in parallel, with checks and judges, repeats and statistics, and compare with a baseline."""

from agentflow.plugins.evaluation import Case, Check, Contains, Grade, Judge, Matches, StaysWithin, Trial, UsesTools
from agentflow.testing.evaluation.comparing import Baseline, Comparison, compare, read_baseline
from agentflow.testing.evaluation.dataset import Dataset
from agentflow.testing.evaluation.report import CaseResult, Evaluation
from agentflow.testing.evaluation.running import Task, evaluate, named_cases
from agentflow.testing.evaluation.statistics import Estimate

__all__ = [
    "Baseline",
    "Case",
    "CaseResult",
    "Check",
    "Comparison",
    "Contains",
    "Dataset",
    "Estimate",
    "Evaluation",
    "Grade",
    "Judge",
    "Matches",
    "StaysWithin",
    "Task",
    "Trial",
    "UsesTools",
    "compare",
    "evaluate",
    "named_cases",
    "read_baseline",
]
