"""`agentflow inspect`: show recorded runs as a local web page, or write them to one HTML file."""

from __future__ import annotations

import asyncio
import webbrowser
from pathlib import Path

import click

from agentflow.errors import AgentFlowError, StoreError, UsageError
from agentflow.serve.guard import LOOPBACK
from agentflow.serve.inspector.inspector import Inspector
from agentflow.serve.inspector.logs import Logs
from agentflow.serve.inspector.one_file import export as export_runs
from agentflow.serve.inspector.stored_runs import is_store, nothing_in
from agentflow.terminal.cli.failures import CommandError, say
from agentflow.terminal.cli.loading import call_loop


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path())
@click.option("--export", "file", metavar="FILE", type=click.Path(dir_okay=False), help="Write one HTML file and exit.")
@click.option("--live", is_flag=True, help="Wait for runs; the folder need not exist yet.")
@click.option("--open", "opens", is_flag=True, help="Open the page in a browser.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port to listen on; a free one by default.")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="Host name under which the page is reachable; may be repeated.",
)
def inspect(
    runs: tuple[str, ...], file: str | None, live: bool, opens: bool, port: int, host: str, names: tuple[str, ...]
) -> int:
    """Show recorded runs in a browser: timeline, events, changes by hooks, conversation, cost.

    RUN is a run log, or a folder or database that a Recorder writes to (sqlite:///runs.db; a run in it: ...#run_1). Active
    runs are updated live. The page is reachable only from this machine, and only with the printed link.
    """
    try:
        if file is not None:
            try:
                written = export_runs(file, *runs)
            except OSError as error:
                raise UsageError(f"{file} cannot be written: {error.strerror}.") from error
            say(f"{written} is complete; open it in a browser")
            return 0
        for run in runs:
            if not (live or is_store(run) or Path(run).exists()):
                raise UsageError(f"There is no run log or folder {run!r}. Use --live if it will be created later.")
            if is_store(run) and not (live or Logs([run]).runs()):
                raise nothing_in(run)
            if Path(run).is_file() and (problem := Logs([run]).problem):
                raise StoreError(problem)
        if host not in LOOPBACK and not names:
            raise UsageError(f"--host {host} is open to other machines. Pass --name with the host name that they use.")
        inspector = Inspector(*runs, hosts=(*LOOPBACK, *names))
        with call_loop() as runner:
            runner.run(serve(inspector, host=host, port=port, opens=opens))
    except AgentFlowError as error:
        raise CommandError(str(error)) from error
    except KeyboardInterrupt:
        pass
    return 0


async def serve(inspector: Inspector, *, host: str = "127.0.0.1", port: int = 0, opens: bool = False) -> None:
    """Serve the page until Ctrl-C."""
    async with inspector.serving(host=host, port=port) as link:
        say(f"inspector  {link}")
        say("           Press Ctrl-C to stop")
        if opens:
            await asyncio.to_thread(webbrowser.open, link)
        await asyncio.Event().wait()
