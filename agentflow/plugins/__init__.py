"""Plugins: ready-made hooks (`docs/plugins/`), each loaded on first use."""

from typing import TYPE_CHECKING

from agentflow._support.lazy import lazily

if TYPE_CHECKING:
    from agentflow.plugins.approval import Allow, Approval, ApprovalRequest, Granted, Refuse, Rule
    from agentflow.plugins.approval.terminal import TerminalAsker
    from agentflow.plugins.cache import ModelCache, ToolCache
    from agentflow.plugins.clearing import ClearOldResults
    from agentflow.plugins.compaction import SummaryCompaction
    from agentflow.plugins.debugger import Breakpoint, Pause
    from agentflow.plugins.evaluation import OnlineEvaluation
    from agentflow.plugins.fallback import ModelFallback
    from agentflow.plugins.goal import GoalJudge
    from agentflow.plugins.guardrails import InputGuardrail, ModelCheck, OutputGuardrail, ToolGuardrail
    from agentflow.plugins.limits import UsageLimits
    from agentflow.plugins.logging import EventLog
    from agentflow.plugins.memory import Memory, MemoryFiles
    from agentflow.plugins.offload import OffloadResults
    from agentflow.plugins.opentelemetry import OpenTelemetry
    from agentflow.plugins.progress import NoProgress
    from agentflow.plugins.rate_limit import RateLimit
    from agentflow.plugins.react import ChainOfThought, ReActThoughts
    from agentflow.plugins.redaction import Redaction
    from agentflow.plugins.reflection import Reflection
    from agentflow.plugins.reminders import DynamicContext, SystemReminder
    from agentflow.plugins.retrieval import Retrieve
    from agentflow.plugins.retry import ModelRetry, ToolRetry
    from agentflow.plugins.shell import ShellApproval
    from agentflow.plugins.skill_sources import GitSkills, PackageSkills
    from agentflow.plugins.skills import Skills
    from agentflow.plugins.steering import Steering
    from agentflow.plugins.tool_search import ToolSearch
    from agentflow.recording import Recorder

__all__ = [
    "Allow",
    "Approval",
    "ApprovalRequest",
    "Breakpoint",
    "ChainOfThought",
    "ClearOldResults",
    "DynamicContext",
    "EventLog",
    "GitSkills",
    "GoalJudge",
    "Granted",
    "InputGuardrail",
    "Memory",
    "MemoryFiles",
    "ModelCache",
    "ModelCheck",
    "ModelFallback",
    "ModelRetry",
    "NoProgress",
    "OffloadResults",
    "OnlineEvaluation",
    "OpenTelemetry",
    "OutputGuardrail",
    "PackageSkills",
    "Pause",
    "RateLimit",
    "ReActThoughts",
    "Recorder",
    "Redaction",
    "Reflection",
    "Refuse",
    "Retrieve",
    "Rule",
    "ShellApproval",
    "Skills",
    "Steering",
    "SummaryCompaction",
    "SystemReminder",
    "TerminalAsker",
    "ToolCache",
    "ToolGuardrail",
    "ToolRetry",
    "ToolSearch",
    "UsageLimits",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "Allow": ".approval",
        "Approval": ".approval",
        "ApprovalRequest": ".approval",
        "Granted": ".approval",
        "Refuse": ".approval",
        "Rule": ".approval",
        "TerminalAsker": ".approval.terminal",
        "ModelCache": ".cache",
        "ToolCache": ".cache",
        "ClearOldResults": ".clearing",
        "SummaryCompaction": ".compaction",
        "Breakpoint": ".debugger",
        "Pause": ".debugger",
        "OnlineEvaluation": ".evaluation",
        "ModelFallback": ".fallback",
        "GoalJudge": ".goal",
        "InputGuardrail": ".guardrails",
        "ModelCheck": ".guardrails",
        "OutputGuardrail": ".guardrails",
        "ToolGuardrail": ".guardrails",
        "UsageLimits": ".limits",
        "EventLog": ".logging",
        "Memory": ".memory",
        "MemoryFiles": ".memory",
        "OffloadResults": ".offload",
        "OpenTelemetry": ".opentelemetry",
        "NoProgress": ".progress",
        "RateLimit": ".rate_limit",
        "ChainOfThought": ".react",
        "ReActThoughts": ".react",
        "Recorder": "agentflow.recording",
        "Redaction": ".redaction",
        "Reflection": ".reflection",
        "DynamicContext": ".reminders",
        "SystemReminder": ".reminders",
        "Retrieve": ".retrieval",
        "ModelRetry": ".retry",
        "ToolRetry": ".retry",
        "ShellApproval": ".shell",
        "GitSkills": ".skill_sources",
        "PackageSkills": ".skill_sources",
        "Skills": ".skills",
        "Steering": ".steering",
        "ToolSearch": ".tool_search",
    },
)
