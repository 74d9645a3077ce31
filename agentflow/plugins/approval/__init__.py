"""`Approval`: a person decides whether a tool may run (`docs/plugins/approval.md`)."""

from agentflow.plugins.approval.hook import (
    Allow,
    Approval,
    ApprovalRequest,
    Asker,
    Choice,
    Decision,
    Granted,
    Refuse,
    Rule,
)

__all__ = ["Allow", "Approval", "ApprovalRequest", "Asker", "Choice", "Decision", "Granted", "Refuse", "Rule"]
