"""`agentflow acp`: serve an agent to an editor, on standard input and output."""

from __future__ import annotations

import asyncio
import sys

import click
from loguru import logger

from agentflow.errors import UsageError
from agentflow.serve.acp.editor import EditorAgent
from agentflow.serve.acp.stdio import serve_stdio, take_streams
from agentflow.terminal.cli.failures import CommandError
from agentflow.terminal.cli.loading import load_agent_or


@click.command()
@click.argument("agent", metavar="MODULE:AGENT")
def acp(agent: str) -> int:
    """Serve an agent to an editor over ACP, the Agent Client Protocol.

    An editor starts this command and talks to it over standard input and output. MODULE:AGENT is an Agent, or an EditorAgent
    if the editor should show diffs before a tool runs.
    """
    logger.remove()
    logger.add(sys.stderr, level="WARNING")  # standard output carries the protocol
    logger.enable("agentflow")
    try:
        streams = take_streams()  # before the user's module is imported: it may print
        asyncio.run(serve_stdio(load_agent_or(agent, EditorAgent), streams=streams))
    except UsageError as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        pass
    return 0
