"""`Approval`: a person decides whether a tool may run (`docs/plugins/approval.md`)."""

from agentflow.plugins.approval.hook import (
    Allow,
    Approval,
    ApprovalDecision,
    ApprovalRequest,
    Asker,
    Choice,
    Granted,
    Refuse,
    Rule,
)

__all__ = ["Allow", "Approval", "ApprovalDecision", "ApprovalRequest", "Asker", "Choice", "Granted", "Refuse", "Rule"]
