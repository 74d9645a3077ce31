"""Shell commands: each part of a chain is judged, and nothing hides."""

from typing import Any

import pytest
from wired import Wired

from agentflow import Agent, tool
from agentflow.errors import UsageError
from agentflow.messages import ToolUseBlock
from agentflow.plugins.shell import ShellApproval
from agentflow.plugins.shell_parts import parts_of
from agentflow.testing import ScriptedModel
from agentflow.testing.wire import Reply, Say, ToolCall

ALLOW = [
    "git status",
    "git log *",
    "ls *",
    "head *",
    "echo *",
    "cat",
    "find *",
    "sudo ls *",
    "true",
    "read *",
    "LANG=* sort *",
    "> /tmp/*",
]
DENY = ["rm", "git push", "curl * --data *", "> /etc/*"]
GUARD = ShellApproval(allow=ALLOW, deny=DENY)


def verdict(command: Any) -> str:
    """What becomes of a command."""
    use = ToolUseBlock("t1", "bash", {"command": command})
    if GUARD.refused(use) is not None:
        return "deny"
    return "allow" if GUARD.allowed(use) else "ask"


ALLOWED = [
    "git status",
    "git log -3 | head -1",
    "ls > /tmp/a 2>&1",
    "ls 2>/dev/null",
    "{ ls; }",
    "(ls; git status) && true || echo no",
    "for i in a b; do ls $i; done",
    "x=1; ls $x",
    "find . -name x -exec ls {} +",
    "timeout 5 ls",
    "nice -5 ls",
    "sudo ls /root",
    "bash -lc 'ls | head'",
    "eval ls",
    "env ls",
    "/usr/bin/env ls",
    "echo $((1+2))",
    "[ -f x ] && ls",
    "if true; then ls; else echo; fi",
    "LANG=C sort -n x",
    "LANG=C env sort -n x",
    "ls # rm x",
    "echo rm x",
    "echo 'a; rm x' \"$HOME\"",
    "cat <<E\nrm x\nE",
    "xargs",
    "ls *",
]

DENIED = [
    "git status; rm x",
    "git status && rm x",
    "git status || rm x",
    "git status | rm",
    "git status & rm x",
    "git status\nrm x",
    "ls |& rm",
    "ls && /bin/rm x",
    "ls `rm x`",
    'echo "$(rm x)"',
    "echo ${x:-$(rm y)}",
    "ls $(\\rm x)",
    "r''m x",
    '"rm" x',
    "rm<x",
    "ls | xargs rm",
    "ls | xargs -n 1 -P 4 rm -f",
    "bash -c 'rm x'",
    "sh -xc 'ls; bash -c \"rm x\"'",
    "env FOO=1 rm x",
    "FOO=1 rm x",
    "sudo rm x",
    "sudo -u bob rm x",
    "eval 'rm x'",
    "eval rm x",
    "cat <<E\n$(rm x)\nE",
    "cat <<E | rm\nE",
    "cat <<< $(rm x)",
    "f() { rm x; }; f",
    "function ls { rm x; }",
    "(ls; rm x)",
    "for i in a b; do rm $i; done",
    "for i in $(rm x); do ls; done",
    "while read l; do rm $l; done",
    "case a in a) rm x;; esac",
    "if [[ $(rm x) ]]; then ls; fi",
    "find . -exec rm {} \\;",
    "git 'push' origin",
    "git pu\\sh",
    "git\tpush",
    "timeout 5 rm x",
    "nice -n 5 rm",
    "nohup setsid command rm x",
    "time rm x",
    "! rm x",
    "coproc rm x",
    "trap 'rm x' EXIT",
    "ls <(rm x)",
    "ls \\\n; rm x",
    "curl a --data b",
    "ls > /etc/passwd",
    "ls &>> /etc/passwd",
]

ASKED = [
    "git statusx",
    "git status -v",
    "gitstatus",
    "./git status",
    "/tmp/env ls",
    "/tmp/bash -c ls",
    'bash -c "$X"',
    "bash --init-file=evil -ic ls",
    "bash --rcfile evil -ic ls",
    "bash -o x -c ls",
    "BASH_ENV=evil bash -c ls",
    "sh script.sh",
    "bash <(echo rm)",
    "cat <<E | sh\nls\nE",
    "LD_PRELOAD=x ls",
    "env LD_PRELOAD=x ls",
    "PATH=/evil; ls",
    "export PATH=/evil; ls",
    "for PATH in /x; do ls; done",
    "sudo -u bob ls",
    "eval $X",
    "$X y",
    "/bin/r?",
    "$'rm' x",
    "git $SUB",
    "git {push,x}",
    "curl $A x",
    "ls > ~/x",
    "ls > $X",
    "ls > /tmp/a -la",
    "ls > /home/x",
    "ls >| /home/x",
    "cat <<E -n\nE",
    "cat < /etc/shadow",
    "echo a > /dev/tcp/x/1",
    "ls | xargs -Z rm",
    "ls | xargs git",
    "env -S 'rm x'",
    "x='a[$(rm y)]'; echo $((x))",
    "[[ x -eq 1 ]] && ls",
    "echo ${x@P}",
    "echo ${!x}",
    "source x",
    ". x",
    "alias ls=rm",
    "echo hi)",
    "ls '",
    "",
    " ",
    "ls\x00",
    "ls\x1b[2K",
    7,
    None,
]


@pytest.mark.parametrize("command", ALLOWED)
def test_allowed(command: str) -> None:
    """Each part of these is allowed by a rule."""
    assert verdict(command) == "allow"


@pytest.mark.parametrize("command", DENIED)
def test_denied(command: str) -> None:
    """One part of these is what a deny rule names, wherever it hides."""
    assert verdict(command) == "deny"


@pytest.mark.parametrize("command", ASKED)
def test_asked(command: Any) -> None:
    """These are not allowed, not parsed, or not known before they run: somebody has to look at them."""
    assert verdict(command) == "ask"


@pytest.mark.parametrize(
    "frame",
    [
        "{}; zap",
        "zap && {}",
        "{} | zap",
        "{} & zap",
        "echo $({}; zap)",
        "echo `zap` && {}",
        "bash -c 'zap'; {}",
        "{}\nzap",
        "({}; zap)",
    ],
)
@pytest.mark.parametrize("command", [command for command in ALLOWED if "<<" not in command and "#" not in command])
def test_what_is_allowed_takes_nothing_along(command: str, frame: str) -> None:
    """An allowed command with anything else beside it is not allowed."""
    assert verdict(frame.replace("{}", command)) == "ask"


def test_the_parts_of_a_script() -> None:
    """A script is every command in it, from outside to inside."""
    script = "a 1 | b $(c 2) > out && bash -c 'd; e'"
    assert [(part.words, part.doubt) for part in parts_of(script)] == [
        (("a", "1"), None),
        (("b", parts_of("b $(c 2)")[0].words[1]), None),
        (("c", "2"), None),
        ((">", "out"), None),
        (("d",), None),
        (("e",), None),
    ]


def test_nested_shells_have_an_end() -> None:
    """A script that is a tower of shells is asked about, not followed for ever."""
    assert verdict("eval " * 3 + "ls") == "allow"
    assert verdict("eval " * 40 + "ls") == "ask"
    assert verdict("nohup " * 40 + "ls") == "ask"


def test_rules_that_cannot_be_meant() -> None:
    """A rule without a command, with an open quote, or a text where a list belongs, is refused when the hook is made."""
    for allow in (["*"], [""], ["ls '"], "ls"):
        with pytest.raises(UsageError):
            ShellApproval(allow=allow)


async def test_lasting_answers_hold_for_the_same_text_only() -> None:
    """`session` for one command is none for another one; for what is not understood it is not offered."""
    asked: list[tuple[str, tuple[str, ...]]] = []

    def ask(request: Any) -> str:
        asked.append((request.tool_use.input["command"], request.choices))
        return "session" if "session" in request.choices else "once"

    ran: list[str] = []

    @tool
    async def bash(command: str) -> str:
        """Run a command."""
        ran.append(command)
        return "ok"

    commands = ["make", "make", "make all", "$X", "$X"]
    script = [*[ToolUseBlock(f"t{n}", "bash", {"command": c}) for n, c in enumerate(commands)], "Done."]
    await Agent("a", ScriptedModel(script), tools=[bash], hooks=[ShellApproval(ask=ask)]).call("go")
    four, two = ("once", "session", "always", "no"), ("once", "no")
    assert asked == [("make", four), ("make all", four), ("$X", two), ("$X", two)]
    assert ran == commands


@pytest.mark.parametrize("how", ["call", "stream"])
async def test_over_the_wire(wired: Wired, how: str) -> None:
    """What is allowed runs; what is denied or not understood does not, and the provider gets the reasons."""
    ran: list[str] = []

    @tool
    async def bash(command: str) -> str:
        """Run a command."""
        ran.append(command)
        return "ok"

    @tool
    async def other(command: str) -> str:
        """Do something else."""
        return "done"

    commands = ["ls | head -1", "ls; rm -rf /", "ls $("]
    uses = [ToolCall("bash", {"command": c}, f"t{n}") for n, c in enumerate(commands)]
    calls = (*uses, ToolCall("other", {"command": "rm"}, "t9"))
    async with wired.serve([Reply("", calls=calls), Say("Done.")]) as server:
        agent = Agent(
            "a", wired.model(server), tools=[bash, other], hooks=[ShellApproval(allow=["ls *", "head *"], deny=["rm"])]
        )
        if how == "stream":
            async with agent.stream("go") as events:
                async for _ in events:
                    pass
        else:
            await agent.call("go")
    assert [answer.text for answer in server.requests[1].results] == [
        "ok",
        "Denied: the shell command runs 'rm -rf /', and rm is not allowed here",
        "Denied: bash needs an approval, and nobody can be asked ('ls $(': it cannot be parsed)",
        "done",
    ]
    assert ran == ["ls | head -1"]
