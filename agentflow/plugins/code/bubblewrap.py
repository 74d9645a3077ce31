"""`Bubblewrap`: runs programs in Linux namespaces, with `bwrap` (https://github.com/containers/bubblewrap).

Rules:

1. A program can read the system's programs and libraries (`/usr` and similar), the interpreter, and the folders of
   `read_only`. It has no network, no environment variables, no other processes, and a `/tmp` of its own in memory.
2. Its time, memory, files and processes are limited. A program that exceeds a limit is ended, or its operation fails.
3. Some system calls fail, such as those that use memory outside the limits, or the user's keyring (`calls_refused.py`).
4. If this process is killed, the kernel kills the program.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from agentflow.errors import UsageError
from agentflow.plugins.code.calls_refused import refusing
from agentflow.plugins.code.running import check_limits, source_of, start_process
from agentflow.plugins.code.sandbox import Program, RunningProgram

_NOBODY: Final = 65_534  # the id of this user on Debian, Fedora, Alpine and others
_SYSTEM: Final = ("/usr", "/lib", "/lib64", "/lib32", "/bin", "/sbin")


class Bubblewrap:
    """A sandbox of Linux namespaces. It needs `bwrap` 0.8 or newer, and unprivileged user namespaces.

    As root it starts programs as the user `nobody`, because the kernel does not limit the number of root's processes.

    Args:
        seconds: The time limit of a program, not counting the functions that it calls.
        memory: The memory limit of a program, in bytes.
        disk: The size of its `/tmp` in bytes, which needs memory in addition to `memory`.
        processes: The maximum number of processes and threads of a program, together.
        output: The maximum number of characters that a program can print.
        read_only: Folders that it can read, at the same paths.
        python: The interpreter; by default this one, or the system's if `nobody` cannot read this one.

    Raises:
        UsageError: `bwrap` is not installed, an argument is invalid, or the system calls of this machine are unknown.

    Example:
        >>> running = await Bubblewrap(seconds=5).start(Program("print(6 * 7)", {}))
        >>> (await running.proceed(())).output
        '42\\n'
    """

    def __init__(
        self,
        *,
        seconds: float = 30.0,
        memory: int = 512 * 1024 * 1024,
        disk: int = 64 * 1024 * 1024,
        processes: int = 1,
        output: int = 20_000,
        read_only: Iterable[str | Path] = (),
        python: str | Path | None = None,
    ) -> None:
        check_limits("Bubblewrap", seconds=seconds, memory=memory, disk=disk, processes=processes, output=output)
        bwrap = shutil.which("bwrap")
        if bwrap is None:
            raise UsageError(
                "Bubblewrap: the program `bwrap` was not found. Install it (apt-get install bubblewrap, dnf install "
                "bubblewrap), or use Monty(), which needs only a package."
            )
        folders = [Path(folder).resolve() for folder in read_only]
        for folder in folders:
            if not folder.is_dir():
                raise UsageError(f"Bubblewrap(read_only=...): {folder} is not a folder.")
        self.seconds = seconds
        self.output = output
        self._limits = {
            "RLIMIT_AS": memory,
            "RLIMIT_CPU": math.ceil(seconds) + 1,  # in case this process fails to end the program in time
            "RLIMIT_FSIZE": disk,
            "RLIMIT_NOFILE": 64,
            "RLIMIT_NPROC": processes,
            "RLIMIT_CORE": 0,  # a core dump would be written outside of the sandbox
        }
        self._refusing = refusing(platform.machine())
        self._command = _command(bwrap, disk, folders, _interpreter() if python is None else Path(python).resolve())

    async def start(self, program: Program) -> RunningProgram:
        """See `Sandbox.start`."""
        reads, writes = os.pipe()
        try:
            with os.fdopen(writes, "wb") as pipe:
                pipe.write(self._refusing)  # smaller than a pipe's buffer, so it does not block
            return await start_process(
                [self._command[0], "--seccomp", str(reads), *self._command[1:]],
                program,
                {"limits": self._limits, "output": self.output},
                seconds=self.seconds,
                fault="bwrap failed: {reason}. It needs unprivileged user namespaces; in a container, allow them, or use "
                "Monty().",
                ends_itself=False,
                env={},
                user=_NOBODY if os.geteuid() == 0 else None,
                pass_fds=(reads,),
            )
        finally:
            os.close(reads)  # the child process has a copy


def _command(bwrap: str, disk: int, folders: Sequence[Path], python: Path) -> list[str]:
    binds: list[str] = []
    for name in _SYSTEM:
        path = Path(name)
        if path.is_symlink():
            binds += ["--symlink", os.readlink(path), name]  # /bin is a link to /usr/bin in most distributions
        elif path.is_dir():
            binds += ["--ro-bind", name, name]
    # This file lists the keys of the host's user.
    hidden = ("--ro-bind", "/dev/null", "/proc/keys") if Path("/proc/keys").exists() else ()
    prefix = python.parents[1]
    for folder in (*([] if prefix.is_relative_to("/usr") else [prefix]), *folders):
        binds += ["--ro-bind", str(folder), str(folder)]
    return [
        bwrap,
        *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--clearenv"),
        *("--cap-drop", "ALL"),
        *binds,
        *("--proc", "/proc", *hidden, "--dev", "/dev", "--remount-ro", "/dev", "--size", str(disk), "--tmpfs", "/tmp"),
        # With a fixed hash seed, sets have the same order when the program runs again.
        *("--remount-ro", "/", "--chdir", "/tmp", "--setenv", "PYTHONHASHSEED", "0"),
        *("--", str(python), "-S", "-s", "-P", "-c", source_of("runner.py")),
    ]


def _interpreter() -> Path:
    """Return this interpreter, or the system's if `nobody` cannot read it."""
    own = Path(getattr(sys, "_base_executable", sys.executable)).resolve()  # not that of a virtual environment
    for python in (own, Path("/usr/bin/python3").resolve(), Path("/usr/local/bin/python3").resolve()):
        # The lowest bit of the mode: any user may enter the folder.
        if python.exists() and (os.geteuid() != 0 or all(folder.stat().st_mode & 1 for folder in python.parents)):
            return python
    raise UsageError(
        f"Bubblewrap: the user nobody cannot read {own}. Install Python in /usr, pass python=..., or do not run as root."
    )
