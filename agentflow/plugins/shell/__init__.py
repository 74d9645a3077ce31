"""`ShellApproval`: rules and approvals for each part of a shell command (`docs/plugins/shell.md`)."""

from agentflow.plugins.shell.hook import ShellApproval

__all__ = ["ShellApproval"]
