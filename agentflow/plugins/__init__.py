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
        ".approval": "Allow Approval ApprovalRequest Granted Refuse Rule",
        ".approval.terminal": "TerminalAsker",
        ".cache": "ModelCache ToolCache",
        ".clearing": "ClearOldResults",
        ".compaction": "SummaryCompaction",
        ".debugger": "Breakpoint Pause",
        ".evaluation": "OnlineEvaluation",
        ".fallback": "ModelFallback",
        ".goal": "GoalJudge",
        ".guardrails": "InputGuardrail ModelCheck OutputGuardrail ToolGuardrail",
        ".limits": "UsageLimits",
        ".logging": "EventLog",
        ".memory": "Memory MemoryFiles",
        ".offload": "OffloadResults",
        ".opentelemetry": "OpenTelemetry",
        ".progress": "NoProgress",
        ".rate_limit": "RateLimit",
        ".react": "ChainOfThought ReActThoughts",
        "agentflow.recording": "Recorder",
        ".redaction": "Redaction",
        ".reflection": "Reflection",
        ".reminders": "DynamicContext SystemReminder",
        ".retrieval": "Retrieve",
        ".retry": "ModelRetry ToolRetry",
        ".shell": "ShellApproval",
        ".skill_sources": "GitSkills PackageSkills",
        ".skills": "Skills",
        ".steering": "Steering",
        ".tool_search": "ToolSearch",
    },
)
