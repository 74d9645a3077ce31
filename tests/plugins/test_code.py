"""`code_tool`: programs in a real sandbox, their restrictions, and calls of tools from code."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from pydantic import TypeAdapter

from agentflow import (
    Agent,
    Approve,
    Deny,
    Hook,
    HookEvent,
    HookResult,
    PostActing,
    PreActing,
    Reply,
    ToolUseBlock,
    tool,
)
from agentflow.errors import CallTimeoutError, SandboxError, UsageError
from agentflow.plugins import Allow, Approval
from agentflow.plugins.code import (
    Bubblewrap,
    FunctionCall,
    FunctionCalls,
    FunctionResult,
    Monty,
    Program,
    ProgramResult,
    RunningProgram,
    Sandbox,
    code_tool,
)
from agentflow.plugins.code.running import ProcessProgram
from agentflow.recording import Recorder, Replay
from agentflow.state import SqlStore
from agentflow.testing import ScriptedModel

NEEDS_MONTY = pytest.mark.skipif(find_spec("pydantic_monty") is None, reason="needs the extra monty")
pytestmark = pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
BOTH = pytest.mark.parametrize("kind", [Bubblewrap, pytest.param(Monty, marks=NEEDS_MONTY)])


@tool(type="read")
async def search(text: str, limit: int = 2) -> list[str]:
    """Find pages.

    Args:
        text: The words to find.
    """
    return [f"{text} {number}" for number in range(limit)]


@tool(requires_approval=True)
async def pay(cents: int) -> str:
    """Pay."""
    return f"paid {cents}"


def code(*lines: str, id: str = "t1") -> ToolUseBlock:  # noqa: A002
    return ToolUseBlock(id, "run_python", {"code": "\n".join(lines)})


async def run(source: str, sandbox: Sandbox) -> ProgramResult:
    running = await sandbox.start(Program(source, {}))
    outcome = await running.proceed(())
    assert isinstance(outcome, ProgramResult)
    return outcome


def process_of(running: RunningProgram) -> asyncio.subprocess.Process:
    assert isinstance(running, ProcessProgram)
    return running._process  # pyright: ignore[reportPrivateUsage]


class Names(Hook):
    """Notes each tool call in the whole tree."""

    scope = "tree"
    observer = True
    events = (PreActing, PostActing)

    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_event(self, event: HookEvent) -> HookResult:
        match event:
            case PreActing(tool_use=use):
                self.seen.append(f"{event.source}> {use.name}")
            case PostActing(tool_use=use, tool_result=result):
                self.seen.append(f"{event.source}< {use.name} {result.state}")
            case _:
                pass


# ---- programs


@pytest.mark.parametrize(
    ("source", "output"),
    [
        ("print(6 * 7)", "42\n"),
        ("x = 6\nx * 7", "42\n"),
        ("None", ""),
        ("import sys\nprint('a', file=sys.stderr)\nprint('ä')", "a\nä\n"),
        ("def f():\n    return g()\ndef g():\n    return 1\nf()", "1\n"),
        ("import sys\nsys.exit()", ""),
        ("open('/tmp/a', 'w').write('b')\nopen('/tmp/a').read()", "'b'\n"),
        ("", ""),
    ],
)
async def test_a_program_prints(source: str, output: str) -> None:
    """The output is the printed text, and the value of the last line."""
    assert await run(source, Bubblewrap(seconds=20)) == ProgramResult(output)


@pytest.mark.parametrize(
    ("source", "output", "error"),
    [
        (
            "print(1)\n1 / 0",
            "1\n",
            'Traceback (most recent call last):\n  File "<program>", line 2, in <module>\n    1 / 0',
        ),
        ("def f(", "", '  File "<program>", line 1\n    def f('),
        ("raise SystemExit('no')", "", "SystemExit: no"),
        ("import os\nos._exit(3)", "", "The program was ended with exit code 3."),
    ],
)
async def test_a_program_fails(source: str, output: str, error: str) -> None:
    """The error is a traceback with the program's lines alone."""
    ended = await run(source, Bubblewrap(seconds=20))
    assert ended.error is not None
    assert (ended.output, ended.error[: len(error)]) == (output, error)
    assert "runner" not in ended.error


HOSTILE = {
    "read a secret": ("open('{secret}').read()", "FileNotFoundError"),
    "read passwords": ("open('/etc/passwd').read()", "FileNotFoundError"),
    "see the environment": ("import os\nassert 'SECRET' in os.environ", "AssertionError"),
    "see other processes": (
        "import os\nassert [n for n in os.listdir('/proc') if n.isdigit() and int(n) > 2]",
        "AssertionError",
    ),
    "change the system": ("open('/usr/lib/x', 'w')", "Read-only"),
    "change the root": ("open('/x', 'w')", "Read-only"),
    "fill /dev": ("open('/dev/x', 'w').write('x')", "Read-only"),
    "fill the disk": ("for n in range(99):\n    open(f'/tmp/{{n}}', 'wb').write(b'x' * 1_000_000)", "No space left"),
    "write a large file": ("open('/tmp/x', 'wb').write(b'x' * 99_000_000)", "File too large"),
    "use memory": ("x = bytearray(2_000_000_000)", "MemoryError"),
    "use memory slowly": ("x = []\nwhile True:\n    x.append('a' * 1_000_000)", "MemoryError"),
    "fork": ("import os\nwhile True:\n    os.fork()", "Resource temporarily unavailable"),
    "start a program": ("import subprocess\nsubprocess.run(['/bin/sh'])", "Resource temporarily unavailable"),
    "start a thread": ("import threading\nthreading.Thread(target=print).start()", "can't start new thread"),
    "run forever": ("while True:\n    pass", "ran for more than 2 s"),
    "wait forever": ("import time\ntime.sleep(99)", "ran for more than 2 s"),
    "connect": ("import socket\nsocket.create_connection(('127.0.0.1', {port}), 1)", "refused"),
    "look up a name": ("import socket\nsocket.getaddrinfo('example.com', 80)", "gaierror"),
    "raise a limit": ("import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))", "not allowed"),
    "become root": ("import os\nos.setuid(0)", "OSError"),
    "trace itself out": ("import ctypes\nassert ctypes.CDLL(None).unshare(0x10000000) == 0", "AssertionError"),
    "mount": ("import ctypes\nassert ctypes.CDLL(None).mount(b'a', b'/tmp', b'tmpfs', 0, None) == 0", "AssertionError"),
    "read the keys of the user": (
        (
            "import ctypes\nc, b = ctypes.CDLL(None), ctypes.create_string_buffer(9)\n"
            "assert c.syscall({keyctl}, 11, c.syscall({keyctl}, 10, -3, b'user', b'agentflow-test', 0), b, 9) > 0\nb.value"
        ),
        "AssertionError",
    ),
    "list the keys of the user": ("open('/proc/keys').read()", "Permission"),
    "use memory of files without names": (
        "import os\nfor n in range(50):\n    os.write(os.memfd_create('a'), b'x' * 50_000_000)",
        "PermissionError",
    ),
    "use shared memory": (
        "import ctypes\nassert ctypes.CDLL(None).shmget(0, 100_000_000, 0o1600) >= 0",
        "AssertionError",
    ),
    "use memory of queues": ("import ctypes\nassert ctypes.CDLL(None).msgget(0, 0o600) >= 0", "AssertionError"),
    "kill all": ("import os\nos.kill(-1, 9)", "No such process"),
    "print without end": ("while True:\n    print('a' * 10_000)", "printed more than"),
    "write over the channel": ("import os\nos.write(4, b'junk\\n')\nwhile True: pass", "invalid message"),
    "end by another's words": ("import os\nos.write(4, b'[' * 100_000 + b'\\n')", "invalid message"),
    "send too much": ("import os\nwhile True:\n    os.write(4, b'x' * 60_000)", "message of more than"),
    "call without end": ("import os\nos.write(4, b'{{\"calls\": []}}\\n')", "called 0 functions"),
    "exhaust the stack": ("def f():\n    f()\nf()", "RecursionError"),
    "break the interpreter": ("import ctypes\nctypes.string_at(0)", "ended by the kernel"),
    "catch its end": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "ran for more than 2 s",
    ),
}


@contextmanager
def a_key_with(text: str) -> Generator[int]:
    """Give this session a key, as a login gives it those of its services; the number of the system call to read it."""
    keyctl, add_key = (250, 248) if platform.machine() == "x86_64" else (219, 217)
    kernel = ctypes.CDLL(None)
    key = kernel.syscall(add_key, b"user", b"agentflow-test", text.encode(), len(text), -3)
    try:
        yield keyctl
    finally:
        kernel.syscall(keyctl, 9, key, -3)


@pytest.mark.ci
@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_program_gets_nothing(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each attempt fails in the program, or ends it; this process continues."""
    source, error = HOSTILE[name]
    monkeypatch.setenv("SECRET", "hunter2")
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    with socket.create_server(("127.0.0.1", 0)) as server, a_key_with("hunter2") as keyctl:
        source = source.format(secret=secret, port=server.getsockname()[1], keyctl=keyctl)
        slow = "ran for more" in error
        ended = await run(source, Bubblewrap(seconds=2 if slow else 30, disk=20_000_000))
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert ended.error is not None
    assert error in ended.error
    assert "hunter2" not in ended.output + ended.error


NO_FILES = "PermissionError"
NO_MODULE = "ModuleNotFoundError"
NO_FUNCTION = "AttributeError: module 'os'"
UNDER_MONTY = {
    "read a secret": NO_FILES,
    "read passwords": NO_FILES,
    "see the environment": "not supported in this environment",
    "see other processes": NO_FILES,
    "change the system": NO_FILES,
    "change the root": NO_FILES,
    "fill /dev": NO_FILES,
    "fill the disk": NO_FILES,
    "write a large file": NO_FILES,
    "use memory": "NameError",  # it has no `bytearray`
    "fork": NO_FUNCTION,
    "start a program": NO_MODULE,
    "start a thread": NO_MODULE,
    "connect": NO_MODULE,
    "look up a name": NO_MODULE,
    "raise a limit": NO_MODULE,
    "become root": NO_FUNCTION,
    "trace itself out": NO_MODULE,
    "mount": NO_MODULE,
    "read the keys of the user": NO_MODULE,
    "list the keys of the user": NO_FILES,
    "use memory of files without names": NO_FUNCTION,
    "use shared memory": NO_MODULE,
    "use memory of queues": NO_MODULE,
    "kill all": NO_FUNCTION,
    "write over the channel": NO_FUNCTION,
    "end by another's words": NO_FUNCTION,
    "send too much": NO_FUNCTION,
    "call without end": NO_FUNCTION,
    "break the interpreter": NO_MODULE,
}
"""The errors that are not those under Bubblewrap."""
ATTACKS_OF_MONTY = {
    "write over the channel": ("__exchange__('junk')", "invalid message"),
    "write lines over it": ("__exchange__('{\"calls\": []}\\n{}')", "invalid message"),
    "send a value": ("__exchange__([1], a=2)", "invalid message"),
    "end by another's words": ("__exchange__('[' * 100_000)", "invalid message"),
    "send too much": ("__exchange__('a' * 2_000_000)", "message of more than"),
    "call without end": ("__exchange__('{\"calls\": []}')", "called 0 functions"),
    "send a bomb": ("x = 'x'\nfor n in range(20):\n    x = [x] * 20\n__exchange__(x)", ""),
    "show a bomb": ("x = 'x'\nfor n in range(20):\n    x = [x] * 20\nx", "emory"),
    "use memory": ("'a' * 10**12", "MemoryError: memory limit exceeded"),
    "use memory of numbers": ("10**10**8", "MemoryError: memory limit exceeded"),
    "raise a large error": ("raise ValueError('a' * 60_000_000)", "MemoryError"),
    "sleep in a loop": ("import time\nwhile True:\n    time.sleep(0)", "ran for more than 2 s"),
    "print, and catch it": (
        "while True:\n    try:\n        print('é' * 9_000)\n    except BaseException:\n        pass",
        "printed more than 20000 characters",
    ),
}


def attacks_of_monty() -> Iterator[Any]:
    """The first attack that each error ends, and the others for `.ci/run`."""
    errors: set[str] = set()
    for name, (_, error) in HOSTILE.items():
        error = UNDER_MONTY.get(name, error)
        yield pytest.param(name, marks=[pytest.mark.ci] if error in errors else [])
        errors.add(error)
    yield from (f"Monty: {name}" for name in ATTACKS_OF_MONTY)


@pytest.mark.ci
@NEEDS_MONTY
@pytest.mark.parametrize("name", [*attacks_of_monty()])
async def test_a_hostile_program_gets_nothing_under_monty(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The interpreter has nothing of what the programs want, and ends those that want too much."""
    monkeypatch.setenv("SECRET", "hunter2")
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    with socket.create_server(("127.0.0.1", 0)) as server:
        if name in HOSTILE:
            source, error = HOSTILE[name]
            source = source.format(secret=secret, port=server.getsockname()[1], keyctl=0)
            error = UNDER_MONTY.get(name, error)
        else:
            source, error = ATTACKS_OF_MONTY[name.removeprefix("Monty: ")]
        ended = await run(source, Monty(seconds=2 if "ran for" in error else 60))
        server.settimeout(0)
        with pytest.raises(BlockingIOError):
            server.accept()
    assert ended.error is not None
    assert error in ended.error
    assert len(ended.error) < 9_000
    assert "hunter2" not in ended.output + ended.error


@NEEDS_MONTY
@pytest.mark.parametrize(
    ("source", "output", "error"),
    [
        ("x = 6\nx * 7", "42\n", None),
        ("print('ä'); [6 * 7]", "ä\n[42]\n", None),
        ("(6\n * 7)  # of all", "42\n", None),
        ("x = 1 + \\\n2", "", None),
        ("if True:\n    7", "", None),
        ("if True: 7; 8", "", None),
        ("for n in range(2): n; n", "", None),
        ("a = 7; a", "7\n", None),
        ("", "", None),
        ("raise SystemExit", "", None),
        ("raise SystemExit('no')", "", "SystemExit: no"),
        ("class A:\n    def __repr__(self):\n        return 'it'\nA()", "it\n", None),
        ("1, 2", "(1, 2)\n", None),
        ("import time\ntime.sleep(0.01)", "", None),
        (
            "print(1)\n1 / 0",
            "1\n",
            'Traceback (most recent call last):\n  File "<program>", line 2, in <module>\n    1 / 0\nZeroDivisionError: ',
        ),
        (
            "f(",
            "",
            'Traceback (most recent call last):\n  File "<program>", line 1, in <module>\n    f(\nSyntaxError: ',
        ),
        ("print(1)\nclass A(Exception):\n    pass", "", "class inheritance"),
        ("def f():\n    yield 1", "", "does not yet support yield"),
        ("import numpy", "", "ModuleNotFoundError: No module named 'numpy'"),
        ("nothing(1)", "", "NameError: name 'nothing' is not defined"),
        ("together(1)", "", "TypeError: together() takes calls such as"),
    ],
)
async def test_a_program_of_monty(source: str, output: str, error: str | None) -> None:
    """Its output, the value of its last line, and its error; unsupported Python is an error that says what."""
    ended = await run(source, Monty(seconds=60))
    assert (ended.output, error and error in (ended.error or "")) == (output, error and True)
    assert ended.error is None or error is not None
    assert "python-input" not in (ended.error or "")


@NEEDS_MONTY
async def test_a_program_of_monty_has_the_same_random_numbers_again() -> None:
    """So it calls the same functions when it runs again; another program has others."""
    source = "import random\nrandom.random()"
    first, again, other = [await run(one, Monty(seconds=60)) for one in (source, source, source + "  # other")]
    assert (first.error, first == again, first == other) == (None, True, False)


@NEEDS_MONTY
async def test_a_function_cannot_be_called_by_a_built_in_of_monty() -> None:
    """The error says what to write; the call is not made."""
    running = await Monty(seconds=60).start(Program("list(map(f, [1]))", {"f": ("x",)}))
    ended = await running.proceed(())
    assert isinstance(ended, ProgramResult)
    assert (ended.error or "").splitlines()[-1] == (
        "NotImplementedError: f() cannot be called by map(), sorted() and other built-ins, or in __repr__; "
        "call it in a loop or a comprehension"
    )


@BOTH
async def test_the_time_limit_does_not_count_functions(kind: type[Bubblewrap | Monty]) -> None:
    """A program that waits for a function longer than its time continues, and is ended when its own time has passed."""
    running = await kind(seconds=3).start(Program("f()\nwhile True: pass", {"f": ()}))
    assert await running.proceed(()) == FunctionCalls((FunctionCall("f", {}),))
    await asyncio.sleep(3.5)
    assert await running.proceed([FunctionResult(1)]) == ProgramResult(
        "", "The program ran for more than 3 s, and was ended."
    )


async def test_a_folder_can_be_read_only() -> None:
    """A folder is there at its own path if it is given, without write access."""
    with TemporaryDirectory(dir="/var/tmp") as name:  # the user `nobody` cannot read pytest's
        (Path(name) / "data").write_text("7")
        os.chmod(name, 0o755)
        assert await run(f"int(open('{name}/data').read())", Bubblewrap(read_only=[name])) == ProgramResult("7\n")
        ended = await run(f"open('{name}/data', 'w')", Bubblewrap(read_only=[name]))
    assert "Read-only" in (ended.error or "")


async def until(found: Callable[[], Any]) -> Any:
    """Wait for something in another process, less long than the programs here would run."""
    async with asyncio.timeout(60):
        while not found():  # noqa: ASYNC110 - no event crosses processes
            await asyncio.sleep(0.01)
    return found()


async def children_of(process: int) -> list[int]:
    """Wait until a process has children, and return them."""
    children = Path(f"/proc/{process}/task/{process}/children")
    return [int(one) for one in (await until(children.read_text)).split()]


async def are_gone(processes: Iterable[int]) -> bool:
    """Wait until processes have ended."""

    def ended(process: int) -> bool:
        try:
            return "State:\tZ" in Path(f"/proc/{process}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return True

    return await until(lambda: all(map(ended, processes)))


@BOTH
async def test_a_closed_program_leaves_no_process(kind: type[Bubblewrap | Monty]) -> None:
    """Closing ends a program that waits, twice too."""
    running = await kind(seconds=120).start(Program("f()", {"f": ()}))
    assert await running.proceed(()) == FunctionCalls((FunctionCall("f", {}),))
    process = process_of(running)
    own = await children_of(process.pid)
    await running.close()
    await running.close()
    assert (process.returncode is not None, await are_gone(own)) == (True, True)


@NEEDS_MONTY
async def test_the_exit_code_of_a_finished_program_is_left_to_asyncio(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Closing the transport polls the process, which loses the code if asyncio's own wait, here slow, has not returned."""
    wait = os.waitpid

    def slow(pid: int, options: int) -> tuple[int, int]:
        time.sleep(0 if options else 0.2)
        return wait(pid, options)

    monkeypatch.setattr(os, "waitpid", slow)
    assert await run("print(1)", Bubblewrap(seconds=20)) == ProgramResult("1\n")
    assert [record.getMessage() for record in caplog.records if record.name == "asyncio"] == []


async def test_a_crash_of_the_interpreter_ends_the_program() -> None:
    """The error says so, with what was printed before."""
    running = await Monty(seconds=120).start(Program("print(1)\nf()\nwhile True: pass", {"f": ()}))
    await running.proceed(())
    (worker,) = await children_of(process_of(running).pid)
    os.kill(worker, signal.SIGKILL)
    ended = await running.proceed([FunctionResult(1)])
    assert isinstance(ended, ProgramResult)
    assert (ended.output, "The program was ended: monty worker crashed" in (ended.error or "")) == ("1\n", True)


def processes_with(mark: str) -> list[int]:
    """The processes that have a text in their command."""
    found: list[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended
            found += [int(folder.name)] * (mark.encode() in (folder / "cmdline").read_bytes())
    return found


@pytest.mark.parametrize("milliseconds", [0, 1, 2, 3, 5, 8, 13, 21, 34, 55, 89])
async def test_a_program_that_is_closed_while_it_starts_leaves_no_process(milliseconds: int) -> None:
    """Wherever bwrap is: if it is killed before it has made its children end with it, they would run on."""
    size = 50_000_000 + 4096 * milliseconds
    running = await Bubblewrap(seconds=120, disk=size).start(Program("while True: pass", {}))
    task = asyncio.create_task(running.proceed(()))
    await asyncio.sleep(milliseconds / 1000)  # processes start in real time
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await running.close()
    assert await until(lambda: processes_with(f"\0{size}\0") == [])


HOST = """
import asyncio
from agentflow.plugins.code import Bubblewrap, FunctionResult, Monty, Program

async def work():
    running = await KIND(seconds=120).start(Program("f()\\nwhile True: pass", {"f": ()}))
    await running.proceed(())
    print(running._process.pid, flush=True)
    await running.proceed([FunctionResult(1)])

asyncio.run(work())
"""


@BOTH
async def test_a_killed_process_leaves_no_program(kind: type[Bubblewrap | Monty]) -> None:
    """Its processes end when this process is killed, also while the program runs."""
    text = HOST.replace("KIND", kind.__name__)
    host = await asyncio.create_subprocess_exec(sys.executable, "-c", text, stdout=asyncio.subprocess.PIPE)
    assert host.stdout is not None
    client = int(await host.stdout.readline())
    own = await children_of(client)
    host.kill()
    await host.communicate()
    assert await are_gone([client, *own])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seconds": 0}, r"Bubblewrap\(seconds=0\): it must be a number above 0"),
        ({"memory": float("nan")}, "memory=nan"),
        ({"seconds": float("inf")}, "seconds=inf"),
        ({"read_only": ["/no/folder"]}, "/no/folder is not a folder"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    """A limit that is none is refused."""
    with pytest.raises(UsageError, match=message):
        Bubblewrap(**options)


def test_a_machine_whose_system_calls_are_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is refused: the memory and the keys would be unprotected."""
    monkeypatch.setattr(platform, "machine", lambda: "m68k")
    with pytest.raises(UsageError, match=r"the system calls of a m68k are unknown.*Monty"):
        Bubblewrap()


@NEEDS_MONTY
@pytest.mark.parametrize("options", [{"seconds": 0}, {"memory": float("nan")}, {"output": -1}])
def test_wrong_options_of_monty_are_refused(options: dict[str, Any]) -> None:
    """A limit that is none is refused."""
    with pytest.raises(UsageError, match=r"Monty\(.*: it must be a number above 0"):
        Monty(**options)


def test_without_the_package_monty_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails when it is configured, with the command."""
    monkeypatch.setitem(sys.modules, "pydantic_monty", None)
    with pytest.raises(UsageError, match=r"pip install 'agentflow-hooks\[monty\]'"):
        Monty()


@NEEDS_MONTY
async def test_monty_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is in the error."""
    monkeypatch.setenv("MONTY_BIN", "/no/monty")
    running = await Monty().start(Program("1", {}))
    with pytest.raises(SandboxError, match=r"Monty failed: .*/no/monty.*pip install -U"):
        await running.proceed(())


@NEEDS_MONTY
def test_the_host_does_not_load_the_interpreter() -> None:
    """Its client is in a process of its own alone."""
    text = HOST.replace("KIND", "Monty").replace("while True: pass", "1")
    ended = subprocess.run(
        [sys.executable, "-c", f"{text}import sys\nprint('pydantic_monty' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines()[1:] == ["False"]


def test_without_bwrap_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fails when it is configured."""
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(UsageError, match="apt-get install bubblewrap"):
        Bubblewrap()


async def test_a_sandbox_that_cannot_start_says_why() -> None:
    """The kernel's reason is in the error."""
    running = await Bubblewrap(seconds=20, python="/usr/no/python").start(Program("1", {}))
    with pytest.raises(SandboxError, match=r"bwrap failed: .*/usr/no/python"):
        await running.proceed(())


# ---- as a tool, and with tools


def agent_with(model: ScriptedModel, *tools: Any, kind: type[Bubblewrap | Monty] = Bubblewrap, **options: Any) -> Agent:
    made = code_tool(*tools, sandbox=kind(seconds=60), hooks=options.pop("code_hooks", ()))
    return Agent("analyst", model, tools=[made], **options)


@BOTH
async def test_code_calls_tools_with_events_of_their_own(kind: type[Bubblewrap | Monty]) -> None:
    """Each call from code is a tool call inside, in order; those together run at the same time."""
    names, both = Names(), asyncio.Barrier(2)

    @tool(type="read")
    async def meet(name: str) -> str:
        await both.wait()
        return name

    model = ScriptedModel(
        [
            code("a = search('bees')", "b, c = together(meet.later('x'), meet.later(name='y'))", "print(a, b, c)"),
            "Done.",
        ]
    )
    agent = agent_with(model, search, meet, kind=kind, hooks=[names])
    assert (await agent.call("Go")).text == "Done."
    assert model.requests[1].messages[-1].tool_results[0].text == "['bees 0', 'bees 1'] x y\n"
    calls = [one for one in names.seen if "workflow_step" not in one]
    assert (calls[:5], sorted(calls[5:7]), calls[7:]) == (
        ["> run_python", "run_python> search", "run_python< search success", "run_python> meet", "run_python> meet"],
        ["run_python< meet success", "run_python< meet success"],
        ["< run_python success"],
    )


async def test_failures_are_exceptions_in_code() -> None:
    """A wrong argument, an unknown function and a refusal raise `ToolError`; an exception of the program is an error result."""
    model = ScriptedModel(
        [
            code(
                "def tell(call):",
                "    try:",
                "        print(call())",
                "    except FunctionError as error:",
                "        print('failed:', str(error).splitlines()[0])",
                "tell(lambda: search(nope=1))",
                "tell(lambda: search('bees', limit='many'))",
                "tell(lambda: pay(5))",
                "search.__name__ = 'delete'",
                "tell(lambda: search('bees'))",
                "try:",
                "    search(1, 2, 3)",
                "except TypeError as error:",
                "    print(error)",
                "search(text={1})",
            ),
            "Done.",
        ]
    )

    class NoPaying(Hook):
        def on_event(self, event: HookEvent) -> HookResult:
            return Deny("not today") if isinstance(event, PreActing) and event.tool_use.name == "pay" else None

    await agent_with(model, search, pay, code_hooks=[NoPaying()]).call("Go")
    result = model.requests[1].messages[-1].tool_results[0]
    lines = result.text.splitlines()
    assert result.state == "error"
    assert lines[:5] == [
        "failed: search: Tool 'search' was not run: its arguments do not fit.",
        "failed: search: Tool 'search' was not run: its arguments do not fit.",
        "failed: pay: Denied: not today",
        "failed: There is no function delete.",
        "delete() takes at most 2 arguments, not 3",
    ]
    assert lines[-1] == "TypeError: Object of type set is not JSON serializable"


@BOTH
@pytest.mark.parametrize("verdict", [Approve(), Deny("too dear")])
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_an_approval_suspends_the_program(
    verdict: Approve | Deny, elsewhere: bool, kind: type[Bubblewrap | Monty], tmp_path: Path
) -> None:
    """The program continues after the decision, in another process too, and no function runs twice."""
    names = Names()
    lines = [
        "found = search('bees')",
        "try:",
        "    print(found, pay(len(found)))",
        "except FunctionError as error:",
        "    print(error)",
    ]

    def agent() -> Agent:
        model = ScriptedModel([code(*lines), "Done."] if not names.seen else ["Done."])
        return agent_with(
            model,
            search,
            pay,
            kind=kind,
            store=SqlStore(f"sqlite:///{tmp_path}/s.db"),
            hooks=[names, Approval([Allow("run_python"), Allow("search")])],
        )

    first = agent()
    reply = await first.call("Go", session="s")
    assert (reply.outcome, [one.tool_use and one.tool_use.name for one in reply.pending]) == ("suspended", ["pay"])
    second = agent() if elsewhere else first
    reply = await second.resume("s", {reply.pending[0].id: verdict})
    assert reply.outcome == "completed"
    result = (await second.history("s"))[-2].tool_results[0]
    answer = "['bees 0', 'bees 1'] paid 2" if isinstance(verdict, Approve) else "pay: Denied: too dear"
    assert result.text == f"{answer}\n"
    assert names.seen.count("run_python< search success") == 1


@BOTH
async def test_a_program_that_changes_is_refused(kind: type[Bubblewrap | Monty], tmp_path: Path) -> None:
    """A program that calls other functions when it runs again does not get the results of the first ones."""

    class Changing:
        """A sandbox whose second start runs another program."""

        starts = 0

        async def start(self, program: Program) -> RunningProgram:
            self.starts += 1
            again = Program("together(search.later('x'), search.later('y'))", program.functions)
            return await kind(seconds=60).start(again if self.starts > 1 else program)

    sandbox = Changing()

    def agent(model: ScriptedModel) -> Agent:
        return Agent(
            "a",
            model,
            tools=[code_tool(search, pay, sandbox=sandbox)],
            store=SqlStore(f"sqlite:///{tmp_path}/s.db"),
            hooks=[Approval([Allow("run_python"), Allow("search")])],
        )

    reply = await agent(ScriptedModel([code("search('bees')", "pay(1)"), "Done."])).call("Go", session="s")
    model = ScriptedModel(["Done."])
    await agent(model).resume("s", {reply.pending[0].id: Approve()})
    result = model.requests[0].messages[-1].tool_results[0]
    assert result.state == "error"
    assert "It must be deterministic" in result.text


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("interrupt", Bubblewrap),
        ("timeout", Bubblewrap),
        ("cancel", Bubblewrap),
        pytest.param("timeout", Monty, marks=NEEDS_MONTY),
        pytest.param("cancel", Monty, marks=NEEDS_MONTY),
    ],
)
async def test_an_ended_call_ends_the_program(how: str, kind: type[Bubblewrap | Monty]) -> None:
    """The process is gone when the call has ended, and its own processes too."""
    begun = asyncio.Event()

    class Noting:
        async def start(self, program: Program) -> RunningProgram:
            running = await kind(seconds=120).start(program)
            processes.append(process_of(running))
            begun.set()
            return running

    processes: list[asyncio.subprocess.Process] = []
    agent = Agent("a", ScriptedModel([code("while True: pass"), "Done."]), tools=[code_tool(sandbox=Noting())])
    tasks = asyncio.all_tasks()
    task = asyncio.ensure_future(agent.call("Go", timeout=3.0 if how == "timeout" else None))
    await begun.wait()
    own = await children_of(processes[0].pid)
    if how == "interrupt":
        assert agent.interrupt(reason="stop")
    elif how == "cancel":
        task.cancel()
    ended = await asyncio.gather(task, return_exceptions=True)
    expected = {"interrupt": Reply, "timeout": CallTimeoutError, "cancel": asyncio.CancelledError}
    assert [type(one) for one in ended] == [expected[how]]
    assert [process.returncode is not None for process in processes] == [True]
    assert (await are_gone(own), asyncio.all_tasks()) == (True, tasks)


@BOTH
async def test_calls_of_functions_are_limited(kind: type[Bubblewrap | Monty]) -> None:
    """A loop of calls ends with an error that says so."""
    model = ScriptedModel([code("while True:", "    search('bees')"), "Done."])
    tools = [code_tool(search, sandbox=kind(seconds=60), max_calls=2)]
    await Agent("a", model, tools=tools).call("Go")
    assert (
        model.requests[1].messages[-1].tool_results[0].text
        == "The program has called functions 2 times, which is the limit."
    )


class Remote:
    """A sandbox of a service, which runs each program and its calls over one connection."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def start(self, program: Program) -> RemoteProgram:
        reads, writes = await asyncio.open_connection("127.0.0.1", self._port)
        writes.write(json.dumps(asdict(program)).encode() + b"\n")
        return RemoteProgram(reads, writes)


class RemoteProgram:
    def __init__(self, reads: asyncio.StreamReader, writes: asyncio.StreamWriter) -> None:
        self._reads, self._writes = reads, writes

    async def proceed(self, results: Sequence[FunctionResult]) -> FunctionCalls | ProgramResult:
        self._writes.write(json.dumps([asdict(one) for one in results]).encode() + b"\n")
        outcome = TypeAdapter[FunctionCalls | ProgramResult](FunctionCalls | ProgramResult)
        return outcome.validate_json(await self._reads.readline())

    async def close(self) -> None:
        self._writes.close()


async def serve_programs(reads: asyncio.StreamReader, writes: asyncio.StreamWriter) -> None:
    """The service: a line with the program, then one with the results before each step."""
    running = await Bubblewrap(seconds=60).start(Program(**json.loads(await reads.readline())))
    try:
        while line := await reads.readline():
            outcome = await running.proceed([FunctionResult(**one) for one in json.loads(line)])
            writes.write(json.dumps(asdict(outcome)).encode() + b"\n")
    finally:
        await running.close()
        writes.close()


async def test_a_remote_sandbox() -> None:
    """The protocol suffices for a service: calls come from it, results go to it, and an end of the call closes it."""
    model = ScriptedModel([code("print(search('bees')[0], search('wasps')[1])"), "Done."])
    async with await asyncio.start_server(serve_programs, "127.0.0.1", 0) as server:
        remote = Remote(server.sockets[0].getsockname()[1])
        names = Names()
        await Agent("a", model, tools=[code_tool(search, sandbox=remote)], hooks=[names]).call("Go")
    assert model.requests[1].messages[-1].tool_results[0].text == "bees 0 wasps 1\n"
    assert names.seen.count("run_python< search success") == 2


@BOTH
async def test_a_replay_starts_no_program(kind: type[Bubblewrap | Monty]) -> None:
    """A recorded run is replayed without the sandbox."""

    class Counting:
        starts = 0

        async def start(self, program: Program) -> RunningProgram:
            Counting.starts += 1
            return await kind(seconds=60).start(program)

    recorder = Recorder()
    agent = Agent(
        "a",
        ScriptedModel([code("search('bees')"), "Done."]),
        tools=[code_tool(search, sandbox=Counting())],
        hooks=[recorder],
    )
    await agent.call("Go")
    replayed = await Replay(recorder.log).arun(agent)
    assert (replayed.divergence, Counting.starts) == (None, 1)


def test_the_model_reads_what_it_can_call() -> None:
    """The description lists the functions with their parameters; the type is the strictest of theirs."""
    alone, made = code_tool(sandbox=Bubblewrap()), code_tool(search, pay, sandbox=Bubblewrap(), name="python")
    assert (
        "search(text: string, limit: integer = 2): Find pages.\n    text: The words to find.\n" in made.spec.description
    )
    assert "functions" not in alone.spec.description
    assert "has the standard library" in alone.spec.description
    assert (alone.type, code_tool(search, sandbox=Bubblewrap()).type, made.type, made.name) == (
        "research",
        "read",
        "write",
        "python",
    )


def test_wrong_arguments_are_refused() -> None:
    """A name that is no Python name, and a limit of none."""
    dashed = tool(name="a-b")(search.function)
    with pytest.raises(UsageError, match=r"'a-b'.*not a Python identifier"):
        code_tool(dashed, sandbox=Bubblewrap())
    with pytest.raises(UsageError, match=r"'import'.*not a Python identifier"):
        code_tool(tool(name="import")(search.function), sandbox=Bubblewrap())
    with pytest.raises(UsageError, match="max_calls=0"):
        code_tool(sandbox=Bubblewrap(), max_calls=0)
    for wrong, shown in ((Bubblewrap, "the class Bubblewrap"), ("monty", "'monty'"), (None, "None")):
        with pytest.raises(UsageError, match=f"takes a sandbox, not {shown}. Pass an object"):
            code_tool(sandbox=wrong)  # type: ignore[arg-type]


async def test_a_long_program_is_refused() -> None:
    """It does not start."""
    model = ScriptedModel([code("#" * 100_001), "Done."])
    await agent_with(model).call("Go")
    assert (
        model.requests[1].messages[-1].tool_results[0].text
        == "The program has 100,001 characters; at most 100,000 are allowed."
    )
