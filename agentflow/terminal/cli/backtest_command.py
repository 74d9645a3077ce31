"""`agentflow backtest`: replay recorded runs with another hook, prompt or model."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial

import click

from agentflow.errors import AgentFlowError
from agentflow.recording.backtest import Variant
from agentflow.recording.backtest import backtest as run_backtest
from agentflow.recording.replay import ReplayOptions
from agentflow.serve.inspector.stored_runs import is_store, open_named
from agentflow.terminal.cli.completion import agents_like
from agentflow.terminal.cli.failures import CommandError, say
from agentflow.terminal.cli.loading import load_agent, load_hook, load_output
from agentflow.vocabulary.event_json import json_line

_FAILED = 1
_CHECKS = ("changed", "refused", "incomparable")


@click.command()
@click.argument("runs", metavar="RUNS...", nargs=-1, required=True, type=click.Path())
@click.argument("agent", metavar="MODULE:AGENT", shell_complete=agents_like)
@click.option("--hook", "hooks", multiple=True, metavar="MODULE:HOOK", help="Add a hook; may be repeated.")
@click.option("--without", multiple=True, metavar="NAME", help="Leave out a hook of the agent; may be repeated.")
@click.option("--system", metavar="TEXT", help="Use another system prompt.")
@click.option("--output", metavar="MODULE:TYPE", help="The type given to the recorded calls as output=.")
@click.option("--model", metavar="NAME", help="Continue each changed run with this model, which is called for real.")
@click.option(
    "--workers", type=click.IntRange(min=1), default=os.cpu_count() or 1, show_default=True, help="Number of processes."
)
@click.option(
    "--limit",
    type=click.FloatRange(0, min_open=True),
    default=60.0,
    show_default=True,
    help="Time limit of each run, in seconds.",
)
@click.option(
    "--results", type=click.Path(dir_okay=False), metavar="FILE", help="Store results here, to continue if interrupted."
)
@click.option("--fail-if", type=click.Choice(_CHECKS), multiple=True, help="Exit code 1 if a run is of this kind.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def backtest(
    runs: Sequence[str],
    agent: str,
    hooks: Sequence[str],
    without: Sequence[str],
    system: str | None,
    output: str | None,
    model: str | None,
    workers: int,
    limit: float,
    results: str | None,
    fail_if: Sequence[str],
    as_json: bool,
) -> int:
    """Replay recorded runs with a change, and show the decisions that would have been different.

    Models and tools return recorded data. Each run is compared up to its first difference.
    """
    make = partial(_variant, agent, hooks, without, system, output, model)
    try:
        logs = [open_named(name)[0] if is_store(name) else name for name in runs]
        report = run_backtest(logs, make, workers=workers, limit=limit, results=results)
    except AgentFlowError as error:
        raise CommandError(str(error)) from error
    say(json_line(report.as_dict()) if as_json else str(report))
    return _FAILED if any(report.of(what) for what in fail_if) else 0


def _variant(
    agent: str, hooks: Sequence[str], without: Sequence[str], system: str | None, output: str | None, model: str | None
) -> Variant:
    """Import the variant; called once in this process, and once in each worker process."""
    options: ReplayOptions = {"hooks": [load_hook(name) for name in hooks], "without": without, "model": model}
    if system is not None:
        options["system"] = system
    if output is not None:
        options["output"] = load_output(output)
    return Variant(load_agent(agent), **options)
