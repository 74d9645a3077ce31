"""`agentflow graph`: the possible calls of an agent with the steps of its workflows, or the calls that a run made."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from agentflow.agent.agent import Agent
from agentflow.agent.arguments import wrapped_agent
from agentflow.agent.as_tool import full_agent
from agentflow.agent.graph import escaped
from agentflow.agent.orchestration import Flow, flow_of
from agentflow.errors import AgentFlowError
from agentflow.recording.graphing import run_graph
from agentflow.serve.inspector.stored_runs import is_store, load_named
from agentflow.terminal.cli.failures import CommandError, say
from agentflow.terminal.cli.loading import load_agent


@click.command()
@click.argument("target", metavar="MODULE:AGENT|RUN")
@click.option("--mermaid", is_flag=True, help="Print a Mermaid diagram.")
@click.option("--run", "run_id", metavar="ID", help="The run, if the file has several.")
def graph(target: str, mermaid: bool, run_id: str | None) -> int:
    """Draw the possible calls of an agent and its sub-agents, with the steps of workflows; or the calls of a recorded run.

    A workflow's source is parsed, not run. For a recorded run, each name shows the number and the duration of its calls.
    """
    flows: list[Flow] = []
    try:
        if is_store(target) or Path(target).exists():
            drawn = run_graph(load_named(target, run_id))
        else:
            agent = load_agent(target)
            drawn = agent.graph()
            flows = [flow for member in _below(agent, set()) if (flow := flow_of(member)) is not None]
    except AgentFlowError as error:
        raise CommandError(str(error)) from error
    if mermaid:
        say(drawn.mermaid())
        for number, flow in enumerate(flows):
            say(f'  subgraph f{number}["{escaped(flow.name)}"]')
            say("\n".join(f"  {line}" for line in flow.mermaid_lines(f"f{number}_")))
            say("  end")
    else:
        say("\n\n".join(map(str, [drawn, *flows])))
    return 0


def _below(agent: Agent, known: set[int]) -> Iterator[Agent]:
    """Yield an agent and the agents among its tools, each once."""
    if id(agent) not in known:
        known.add(id(agent))
        yield agent
        for tool in full_agent(agent).own_tools:
            if isinstance(inner := wrapped_agent(tool.function), Agent):
                yield from _below(inner, known)
