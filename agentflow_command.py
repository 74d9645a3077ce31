"""The `agentflow` command, before anything of the package is imported: importing it takes a while, and Ctrl-C ends that too."""

import os
import signal
from types import FrameType

__all__ = ["leave_on_interrupt", "main"]


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(130)  # nothing has been opened yet


def leave_on_interrupt() -> None:
    """From here on Ctrl-C ends the process without a word, until `main` runs the command line."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)


def main() -> None:
    """Import the command line and run it.

    Raises:
        SystemExit: Always; see `agentflow.terminal.cli.main`.
    """
    leave_on_interrupt()
    from agentflow.terminal.cli.main import main as run

    if signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
