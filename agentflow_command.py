"""The `agentflow` command, before anything of the package is imported: importing it takes a while, and Ctrl-C ends that too."""

import os
import signal
from types import FrameType


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(130)  # nothing has been opened yet


def main() -> None:
    """Import the command line and run it.

    Raises:
        SystemExit: Always; see `agentflow.cli.main`.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _leave)
    from agentflow.cli.main import main as run

    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, before)
    run()
