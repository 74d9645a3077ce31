"""`agentflow serve`: serve agents over HTTP."""

from __future__ import annotations

import os

import click

from agentflow.errors import AgentFlowError
from agentflow.serve import STANDARD, App, View, a2a, bearer_tokens
from agentflow.serve.durable_runs import HasWorkers
from agentflow.serve.guard import LOOPBACK
from agentflow.serve.server import listen, server_for
from agentflow.terminal.cli.failures import CommandError, say
from agentflow.terminal.cli.loading import call_loop, load_agent_or

_SHUTDOWN_SECONDS = 20.0


@click.command()
@click.argument("agents", metavar="MODULE:AGENT...", nargs=-1, required=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 for a free one.")
@click.option(
    "--store", envvar="AGENTFLOW_STORE", metavar="URL", help="Store of the sessions, such as sqlite:///chat.db."
)
@click.option("--token-env", metavar="NAME", help="Environment variable with the token that clients must send.")
@click.option("--name", "names", multiple=True, metavar="HOST", help="Host name under which the server is reachable.")
@click.option("--origin", "origins", multiple=True, metavar="URL", help="Other site whose pages may use the server.")
@click.option("--ui", is_flag=True, help="Serve the web chat at /.")
@click.option("--full", is_flag=True, help="Also show thinking, costs, and arguments and results of tools.")
@click.option(
    "--a2a", "with_a2a", is_flag=True, help="Also serve the agents to other agents (A2A); needs the extra a2a."
)
@click.option("--no-resume", is_flag=True, help="Do not continue runs that the last process left unfinished.")
def serve(
    agents: tuple[str, ...],
    host: str,
    port: int,
    store: str | None,
    token_env: str | None,
    names: tuple[str, ...],
    origins: tuple[str, ...],
    ui: bool,
    full: bool,
    with_a2a: bool,
    no_resume: bool,
) -> int:
    """Serve agents over HTTP: runs with events, decisions, and sessions. Workers run the calls of a DurableAgent.

    Without --token-env, the server is reachable only from this machine. With --store, sessions outlive the process, and
    runs that were stopped continue. /openapi.json describes the routes.
    """
    try:
        app = App(
            [load_agent_or(agent, HasWorkers) for agent in agents],
            store=store,
            auth=None if token_env is None else bearer_tokens({_token(token_env): "user"}),
            view=View(tools="full", thinking=True, cost=True) if full else None,
            hosts=(*LOOPBACK, *names),
            origins=origins,
            routes=[*STANDARD, _a2a()] if with_a2a else STANDARD,
            ui=ui,
            resume=not no_resume,
            shutdown_seconds=_SHUTDOWN_SECONDS,
        )
        listening = listen(app, host, port)
        with listening, call_loop() as runner:
            server = server_for(app, shutdown_seconds=_SHUTDOWN_SECONDS)
            shown = f"[{host}]" if ":" in host else host
            served = ", ".join([agent.name for agent in app.service.all_agents])
            say(f"agentflow: serving {served} at http://{shown}:{listening.getsockname()[1]}")
            runner.run(server.serve(sockets=[listening]))
    except AgentFlowError as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        pass
    return 0


def _a2a() -> a2a.A2A:
    try:
        return a2a.A2A()
    except ImportError as error:
        raise CommandError(f"{error}.") from error


def _token(name: str) -> str:
    token = os.environ.get(name)
    if not token:
        raise CommandError(f"--token-env {name}: this environment variable is not set. Set it to a random token.")
    return token
