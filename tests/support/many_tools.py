"""500 tools as a handful of MCP servers offer them, and queries in a person's words, each with the tools that would do."""

from __future__ import annotations

from typing import Any

from agentflow.tools import Tool, schema_tool

SERVICES: dict[str, tuple[str, list[str]]] = {
    "github": ("GitHub", ["issue", "pull_request", "repository", "branch", "release"]),
    "gitlab": ("GitLab", ["merge_request", "pipeline", "project", "runner", "snippet"]),
    "jira": ("Jira", ["issue", "sprint", "board", "comment", "worklog"]),
    "slack": ("Slack", ["message", "channel", "reaction", "reminder", "user_group"]),
    "gmail": ("Gmail", ["email", "draft", "label", "thread", "attachment"]),
    "calendar": ("Google Calendar", ["event", "calendar", "invitation", "room", "working_hours"]),
    "drive": ("Google Drive", ["file", "folder", "permission", "comment", "shortcut"]),
    "stripe": ("Stripe", ["payment", "refund", "invoice", "subscription", "coupon"]),
    "salesforce": ("Salesforce", ["lead", "opportunity", "account", "contact", "campaign"]),
    "aws": ("AWS", ["ec2_instance", "s3_bucket", "lambda_function", "rds_database", "iam_role"]),
}
ACTIONS = {
    "create": "Create a new {what} in {where}.",
    "get": "Get one {what} of {where} by its id.",
    "list": "List the {what}s of {where}, page by page.",
    "search": "Search {what}s in {where} by text.",
    "update": "Change fields of an existing {what} in {where}.",
    "delete": "Delete a {what} from {where} permanently.",
    "archive": "Archive a {what} in {where} so that it no longer appears.",
    "export": "Export {what}s of {where} as a CSV file.",
    "share": "Share a {what} of {where} with other people.",
    "watch": "Subscribe to changes of a {what} in {where}.",
}
QUERIES: dict[str, str] = {
    "open a bug report in jira": "jira_create_issue",
    "create a Jira ticket": "jira_create_issue",
    "give the customer their money back, refund": "stripe_create_refund",
    "create a refund": "stripe_create_refund",
    "send a slack message": "slack_create_message",
    "list all S3 buckets": "aws_list_s3_bucket",
    "delete an EC2 instance": "aws_delete_ec2_instance",
    "search my emails": "gmail_search_email",
    "which meetings are in the calendar? list events": "calendar_list_event",
    "schedule a new calendar event": "calendar_create_event",
    "share a folder of Google Drive with a colleague": "drive_share_folder",
    "find a file in drive": "drive_search_file",
    "list pull requests": "github_list_pull_request",
    "get a pull request by id": "github_get_pull_request",
    "create a merge request on gitlab": "gitlab_create_merge_request",
    "get the status of a pipeline": "gitlab_get_pipeline",
    "export invoices as csv": "stripe_export_invoice",
    "update a subscription": "stripe_update_subscription",
    "new sales lead": "salesforce_create_lead",
    "change the opportunity": "salesforce_update_opportunity",
    "watch a repository for changes": "github_watch_repository",
    "archive a slack channel": "slack_archive_channel",
    "reminder": "slack_create_reminder",
    "delete a draft email": "gmail_delete_draft",
    "attachments of an email": "gmail_list_attachment",
    "create an IAM role": "aws_create_iam_role",
    "lambda functions": "aws_list_lambda_function",
    "add a comment to a jira issue": "jira_create_comment",
    "log work on a ticket, jira worklog": "jira_create_worklog",
    "current sprint in jira": "jira_get_sprint",
    "book a meeting room": "calendar_create_room",
    "searchContacts": "salesforce_search_contact",
    "github_create_branch": "github_create_branch",
    "publish a release on github": "github_create_release",
    "coupons": "stripe_list_coupon",
    "unsubscribe from a label of gmail": "gmail_delete_label",
    "react to a message with an emoji": "slack_create_reaction",
    "revoke the permission to a drive file": "drive_delete_permission",
    "show me the RDS databases": "aws_list_rds_database",
    "export campaign results": "salesforce_export_campaign",
}
"""Queries, each with the tool that it is about."""


async def _ran(arguments: dict[str, Any], context: Any) -> str:
    return f"{context.tool_use.name} {arguments['id']}"


def _parameters(what: str) -> dict[str, Any]:
    text = {"type": "string"}
    return {
        "type": "object",
        "properties": {
            "id": {**text, "description": f"The id of the {what}."},
            "fields": {"type": "array", "items": text, "description": "The fields to return; all if it is empty."},
            "dry_run": {"type": "boolean", "description": "Only check whether it would work."},
        },
        "required": ["id"],
    }


def many_tools() -> list[Tool[..., Any]]:
    """The 500 tools."""
    return [
        schema_tool(
            f"{server}_{action}_{what}",
            about.format(what=what.replace("_", " "), where=where),
            _parameters(what.replace("_", " ")),
            _ran,
            type="read" if action in ("get", "list", "search") else "write",
        )
        for server, (where, objects) in SERVICES.items()
        for what in objects
        for action, about in ACTIONS.items()
    ]
