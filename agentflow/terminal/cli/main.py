"""`agentflow`: the commands and their options; the other modules of this package implement them.

Exit codes are in `agentflow.terminal.cli.failures`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module, metadata
from io import TextIOWrapper

import click

from agentflow.agent.agent import Agent
from agentflow.errors import AgentFlowError, ScriptError
from agentflow.loop.session import Session
from agentflow.plugins.debugger import Breakpoint
from agentflow.terminal.cli.completion import agents_like, completion
from agentflow.terminal.cli.failures import EXIT_CODES, INTERRUPTED, CommandError, code_of, say
from agentflow.terminal.cli.hook_table import print_hooks
from agentflow.terminal.cli.loading import call_loop, load_agent
from agentflow.terminal.console import follow
from agentflow.terminal.conversation import chat as talk
from agentflow.terminal.phrases import call_text
from agentflow.terminal.printer import make_console
from agentflow.terminal.screen import Screen
from agentflow.vocabulary.event_json import event_line
from agentflow.vocabulary.events import HookEvent, PreCall


class LazyCommand(click.Command):
    """A command in a module that is imported only when the command is called.

    Args:
        name: The command's name.
        module: The module that defines the command under that name.
        short_help: The description in the list of commands.
        needs: The extra that provides the module's dependencies, if any.
    """

    def __init__(self, name: str, module: str, short_help: str, needs: str | None = None) -> None:
        super().__init__(name, short_help=short_help)
        self._module = module
        self._needs = needs

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        """Load the command and let it parse its arguments."""
        try:
            module = import_module(self._module)
        except ImportError as error:
            if self._needs is None or (error.name or "").startswith("agentflow"):
                raise
            missing = f"`agentflow {self.name}` needs {error.name}, which is not installed: "
            advice = f"pip install 'agentflow-hooks[{self._needs}]'."
            raise CommandError(
                f"{missing}{advice}" if error.name else f"{error}."
            ) from error  # errors of the package itself have no name
        command: click.Command = getattr(module, str(self.name))
        return command.make_context(info_name, args, parent, **extra)


def _version(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:  # a shell only asks for completions
        return
    try:
        click.echo(f"agentflow {metadata.version('agentflow-hooks')}")
    except metadata.PackageNotFoundError:
        click.echo("agentflow (from source)")
    context.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def cli() -> None:
    """Agents whose every step is an event that hooks can see, change and veto.

    An agent is named module:agent, such as shop.agents:assistant for the variable assistant in shop/agents.py.

    \b
    Exit codes:
      0    the call completed
      1    the call did not complete (denied, stopped, at its limit, suspended, failed in a hook)
      2    usage or configuration error (arguments, agent, key, model, network)
      130  interrupted with Ctrl-C
    """


@cli.command()
@click.argument("agent", metavar="MODULE:AGENT", shell_complete=agents_like)
@click.argument("prompt")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per event.")
@click.option("--events", is_flag=True, help="Print a line for every event.")
@click.option("-q", "--quiet", is_flag=True, help="Print only the model's text.")
@click.option("--children", is_flag=True, help="Include the events of sub-agents.")
@click.option("--session", metavar="ID", help="Session to continue; needs an agent with a store.")
@click.option(
    "--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="Time limit of the call."
)
def run(
    agent: str,
    prompt: str,
    as_json: bool,
    events: bool,
    quiet: bool,
    children: bool,
    session: str | None,
    timeout: float | None,
) -> int:
    """Call an agent once and show the call. With "-", the prompt is read from standard input."""
    loaded = load_agent(agent)
    message = sys.stdin.read() if prompt == "-" else prompt
    conversation = loaded.session(session)
    screen = Screen(make_console(), events=events, quiet=quiet or as_json, children=children)

    def as_line(event: HookEvent) -> None:
        screen.tally.count(event)
        click.echo(event_line(event))

    stream = loaded.stream(
        message,
        session=conversation,
        timeout=timeout,
        children=children or not as_json,  # the lines of active work show sub-agents in any case
        buffer=0,  # show all earlier events before a hook asks a question
    )
    interrupt = partial(loaded.interrupt, conversation, "Ctrl-C")
    try:
        with call_loop() as runner:
            runner.run(follow(stream, screen, show=as_line if as_json else None, interrupt=interrupt))
    except (
        Exception,
        ScriptError,
    ) as error:  # hooks and tools may raise anything; print it as one line
        raise CommandError(_format_error(error), code_of(error)) from error
    screen.summary_line()
    _say_pending(loaded, conversation)
    return EXIT_CODES[screen.tally.outcome or "failed"]


@cli.command()
@click.argument("agent", metavar="MODULE:AGENT", shell_complete=agents_like)
@click.option("--session", metavar="ID", help="Session of the conversation.")
@click.option("--events", is_flag=True, help="Print a line for every event.")
@click.option("--step", is_flag=True, help="Pause each call at its first event, in the debugger.")
def chat(agent: str, session: str | None, events: bool, step: bool) -> int:
    """Chat with an agent. Ctrl-C interrupts a call, not the program; /help lists the commands."""
    loaded = load_agent(agent)
    if step and not sys.stdin.isatty():
        raise CommandError("--step needs a terminal as standard input, to ask at each pause.")
    hooks = [Breakpoint(PreCall, scope="tree", when=lambda event: not event.source)] if step else []
    try:
        with call_loop() as runner:
            runner.run(talk(loaded, session=session, events=events, hooks=hooks))
    except AgentFlowError as error:
        raise CommandError(str(error), code_of(error)) from error
    return 0


@cli.command()
@click.argument("agent", metavar="MODULE:AGENT", shell_complete=agents_like)
def hooks(agent: str) -> int:
    """Show an agent's hooks, event by event, in the order in which they run."""
    loaded = load_agent(agent)
    print_hooks(make_console(), loaded.name, loaded.hooks)
    return 0


cli.add_command(completion)
for _name, _module, *_about in (
    ("demo", "demo", "Watch an agent work: real files, real HTTP, a hook that vetoes."),
    ("new", "new", "Create a project: an agent, its tools, a hook, a test."),
    ("graph", "graph_command", "Draw an agent's possible calls, or a run's actual ones."),
    ("models", "models_command", "Show the adapter and key of a model's name."),
    ("worker", "worker_command", "Run calls submitted by other processes.", "dbos"),
    ("inspect", "inspect_command", "Show recorded runs in a browser.", "web"),
    ("serve", "serve_command", "Serve agents over HTTP.", "serve"),
    ("acp", "acp_command", "Serve an agent to an editor over ACP.", "acp"),
    ("mcp", "mcp_command", "Serve an agent over MCP.", "mcp"),
    ("replay", "run_logs", "Replay a recorded run with its replies and results."),
    ("backtest", "backtest_command", "Replay many recorded runs with a change."),
    ("eval", "eval_command", "Run a dataset, and compare it with a baseline."),
    ("diff", "run_logs", "Compare two recorded runs."),
    ("explain", "run_logs", "Show which hooks affected a message of a recorded run."),
    ("export", "export_command", "Write a stored session as a run log.", "sql"),
    ("runs", "runs", "List, show, cancel, resume and prune submitted runs.", "dbos"),
):
    cli.add_command(LazyCommand(_name, f"agentflow.terminal.cli.{_module}", *_about))


def _format_error(error: BaseException) -> str:
    """Format an error on one line, with its notes, which name the failed component."""
    notes = "; ".join(getattr(error, "__notes__", ()))
    name = "" if code_of(error) == 2 else f"{type(error).__name__}: "
    return f"{name}{error}{f' ({notes})' if notes else ''}"


def _say_pending(agent: Agent, session: Session) -> None:
    for wait in session.pending:
        what = call_text(wait.tool_use, 80) if wait.tool_use is not None else "a decision"
        say(f"agentflow: {agent.name} waits for {what}; `agentflow chat` asks you for it.", err=True)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit.

    Args:
        arguments: Arguments to use instead of `sys.argv`.

    Raises:
        SystemExit: Always, with one of the exit codes.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")  # a model may write characters that the encoding lacks
    try:
        code = cli.main(arguments, prog_name="agentflow", standalone_mode=False)  # so that click does not exit itself
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
