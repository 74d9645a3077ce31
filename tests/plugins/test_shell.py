"""Shell commands: each part of a chain is checked, and nothing can hide."""

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from wired import Wired

from agentflow import Agent, tool
from agentflow.errors import UsageError
from agentflow.plugins.shell import ShellApproval
from agentflow.plugins.shell.parts import BUILTINS, ParsedScript, Part, UnknownWords, read_script
from agentflow.testing import ScriptedModel
from agentflow.testing.wire import Say, ScriptedCall, WireReply
from agentflow.vocabulary.messages import ToolUseBlock

ALLOW = [
    "git status",
    "git log *",
    "git log -[0-9]*",
    "git log -- *",
    "ls **",
    "head *",
    "head -[0-9]*",
    "echo **",
    "cat",
    "find *",
    "find . -name *",
    "sudo ls *",
    "true",
    "read *",
    "test -f *",
    "printf **",
    "bash run.sh",
    "pytest tests/*",
    "LANG=* sort **",
    "x=*",
    "> /tmp/*",
    "< /tmp/*",
]
DENY = ["rm", "git push", "curl * --data *", "> /etc/*"]
GUARD = ShellApproval(allow=ALLOW, deny=DENY)
POSIX = ShellApproval(shell="sh", allow=ALLOW, deny=DENY)


def verdict(command: Any, guard: ShellApproval = GUARD) -> str:
    """What becomes of a command."""
    use = ToolUseBlock("t1", "bash", {"command": command})
    if guard.refused(use) is not None:
        return "deny"
    return "allow" if guard.allowed(use) else "ask"


ALLOWED = [
    "git status",
    "git log",
    "git log main HEAD~2 'a b'",
    "git log -- -x $x",
    "git log | head -1",
    "git log |\n head -1",
    "git log\n\nhead -1\n",
    "git status;",
    "ls -l && true || echo no; ls",
    "ls -l > /tmp/a 2>&1",
    "ls 2>/dev/null",
    "head < /tmp/a",
    "> /tmp/a",
    "> /tmp/a ls",
    'x=1; ls $x ${x} "$x" "${x}"',
    "LANG='a b' sort y=1",
    "timeout 5 ls",
    "timeout 1.5m nice env ls",
    "time ls",
    "sudo ls /root",
    "ls | xargs ls",
    "bash run.sh",
    "LANG=C sort -n x",
    "LANG=C env sort -n x",
    "echo rm x",
    "echo 'a; rm x' \"; rm x\" 'it''s'",
    'echo "a \\"b\\" \\$x \\. c"',
    "echo 'a\nrm x'",
    "echo 'Grüße'",
    "echo a=b --c=d @e %f +g h:i,j /k/l ^m 12 -3 _",
    "find . -name x",
    "test -f x",
    "printf '%s\\n' x",
    "pytest tests/a.py",
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
    "ls | xargs -Z rm",
    "bash -c 'rm x'",
    "sh -xc 'ls; bash -c \"rm x\"'",
    "bash <(echo rm)",
    "env FOO=1 rm x",
    "env -S 'rm x'",
    "FOO=1 rm x",
    "sudo rm x",
    "sudo -u bob rm x",
    "eval 'rm x'",
    "eval rm x",
    "cat <<E\n$(rm x)\nE",
    "cat <<E\nrm x\nE",
    "cat <<E | rm\nE",
    "cat <<< $(rm x)",
    "f() { rm x; }; f",
    "function ls { rm x; }",
    "alias ls=rm",
    "(ls; rm x)",
    "for i in a b; do rm $i; done",
    "for i in $(rm x); do ls; done",
    "while read l; do rm $l; done",
    "case a in a) rm x;; esac",
    "if [[ $(rm x) ]]; then ls; fi",
    "find . -exec rm {} \\;",
    "find . -exec rm x ';'",
    "git 'push' origin",
    "git pu\\sh",
    "git pu\\\nsh",
    "git\tpush",
    "timeout 5 rm x",
    "nice -n 5 rm",
    "x='5 rm VICTIM'; nice -n $x git status",
    "nohup setsid command rm x",
    "/usr/bin/env rm x",
    "time rm x",
    "! rm x",
    "coproc rm x",
    "trap 'rm x' EXIT",
    "ls <(rm x)",
    "ls \\\n; rm x",
    "ls # rm x",
    "$'rm' x",
    "curl a --data b",
    "curl a --data b $(x)",
    "ls > /etc/passwd",
    "ls > /tmp/../etc/passwd",
    "ls > //etc/passwd",
    "ls &>> /etc/passwd",
    "ls >&2 & ls >/etc/passwd",
]

ASKED = [
    # options, where the rule has no place for them
    "git log --output=x",
    "git log -p",
    "git log '-p'",
    "git log main --output=x",
    "git log $x",
    'git log "$x"',
    "head -c1",
    "x='--output=y'; git log $x",
    "ls | xargs git log",
    # places that the rule does not mean
    "pytest tests/../evil.py",
    "ls > /tmp/../home/x",
    "ls > $x",
    "x=/tmp/a; ls > $x",
    "ls > /home/x",
    "ls > ~/x",
    "head < /etc/shadow",
    "echo a > /dev/tcp/x/1",
    # other commands
    "git statusx",
    "git status -v",
    "gitstatus",
    "./git status",
    "sh run.sh",
    "bash -c ls",
    "LD_PRELOAD=x ls",
    "env LD_PRELOAD=x ls",
    "LANG=C ls",
    "PATH=/evil; ls",
    "export PATH=/evil; ls",
    "y=1",
    "x+=1; ls",
    "x+=1 ls",
    "nohup",
    "ls | xargs git",
    # not known before it runs
    "$X y",
    '"$X" y',
    "git $SUB",
    "curl $A x",
    "timeout $x ls",
    "nice -n $x ls",
    "env -u $x ls",
    "ls | xargs -n $x ls",
    "find . -name $x",
    "test -f $x",
    # what bash runs inside of a variable's name
    "read 'a[$(zap)]'",
    "printf -v 'a[$(zap)]' x",
    # more than the positive list
    "{ ls; }",
    "(ls)",
    "! ls",
    "ls &",
    "ls & ls",
    "ls |& head",
    "ls;; ls",
    "for i in a b; do ls $i; done",
    "while true; do ls; done",
    "if true; then ls; fi",
    "case a in a) ls;; esac",
    "f() { ls; }",
    "[ -f x ] && ls",
    "[[ x -eq 1 ]] && ls",
    "for PATH in /x; do ls; done",
    "ls # comment",
    "ls *",
    "ls a?",
    "ls ~",
    "ls a:~ b=~",
    "ls {a,b}",
    "ls a\\ b",
    "ls \\\n-l",
    "ls $1 $@ $? $$",
    "ls a$x",
    'ls "a$x"',
    "ls $x$x",
    "ls ${x:-y}",
    "ls ${x[0]}",
    "ls ${!x} ${x@P}",
    "ls $(ls)",
    "ls `ls`",
    "ls <(ls)",
    "ls $((1+2))",
    "ls $[1+2]",
    "ls $'a'",
    'ls $"a"',
    "cat <<E\nls\nE",
    "cat <<< ls",
    "ls >| /tmp/a",
    "ls <> /tmp/a",
    "ls >& /tmp/a",
    "ls {x}> /tmp/a",
    "ls 12> /tmp/a",
    "ls>/tmp/a",
    "ls 2 >&1x",
    "ls > /tmp/a /tmp/b &",
    "ls >\n/tmp/a",
    "eval ls",
    "alias x=ls",
    "nice -n 5 ls",
    "timeout -s KILL 5 ls",
    "xargs -0 ls",
    "find . -exec ls x ';'",
    "/usr/bin/env ls",
    "source x",
    ". x",
    # no script
    "echo hi)",
    "ls '",
    "ls && && ls",
    "; ls",
    "",
    " ",
    "ls\x00",
    "ls\x1b[2K",
    "ls\r",
    "ls 'a\u202eb'",
    "ls\u00a0-l",
    "ls \ud800",
    7,
    None,
]


@pytest.mark.parametrize("command", ALLOWED)
def test_allowed(command: str) -> None:
    """Each part of these is allowed by a rule."""
    assert verdict(command) == "allow"


@pytest.mark.parametrize("command", DENIED)
def test_denied(command: str) -> None:
    """One part of these matches a deny rule, wherever it is."""
    assert verdict(command) == "deny"


@pytest.mark.parametrize("command", ASKED)
def test_asked(command: Any) -> None:
    """These are not allowed, not parsed, or not known before they run: a person decides."""
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
@pytest.mark.parametrize("command", ALLOWED)
def test_what_is_allowed_takes_nothing_along(command: str, frame: str) -> None:
    """An allowed command with anything else beside it is not allowed."""
    assert verdict(frame.replace("{}", command)) != "allow"


LENIENT = ShellApproval(allow=[f"{name} **" for name in sorted(BUILTINS)] + ["git log *", "x=*", "< *"])
"""A user who thinks that no builtin does harm."""
ASSIGNING = [
    "printf -v PATH bin",
    "printf -vPATH bin",
    "printf '-v' PATH bin",
    "printf $f PATH bin",
    "builtin printf -v PATH bin",
    "command printf -v PATH bin",
    "printf %n PATH",
    "printf 'ab%5.3ln' PATH",
    "read PATH < bin.txt",
    "read -r PATH < bin.txt",
    "read < bin.txt",
    "builtin read PATH < bin.txt",
    "mapfile PATH < bin.txt",
    "mapfile -t -C ./evil -c 1 a < bin.txt",
    "readarray -t PATH < bin.txt",
    "readarray -C ./evil -c 1 a < bin.txt",
    "declare PATH=bin",
    "declare -x PATH=bin",
    "typeset PATH=bin",
    "local PATH=bin",
    "export PATH=bin",
    "export x=1 PATH=bin",
    "export -n PATH",
    "export $x",
    "readonly PATH=bin",
    "builtin export PATH=bin",
    "let PATH=5",
    "getopts a PATH -a",
    "unset PATH",
    "eval PATH=bin",
    "source bin.txt",
    ". bin.txt",
    "set -a",
    "set -- -x",
    "shopt -s expand_aliases",
    "alias git=./evil",
    "hash -p ./evil git",
    "enable -f ./evil git",
    "trap ./evil EXIT",
    "bind -x '\"x\":./evil'",
    "complete -C ./evil git",
    "compgen -C ./evil",
    "coproc ./evil",
    "fc -s",
    "history -w out.txt",
    "jobs -x ./evil",
    "wait -p PATH",
    "wait -np PATH",
    "env PATH=bin git log",
]
"""What changes the shell, or what a name means in it, so that an allowed command is another one."""


@pytest.mark.parametrize("command", ASSIGNING)
def test_a_builtin_that_assigns_is_an_assignment(command: str) -> None:
    """A person is asked, although there is a rule for the builtin with any words, and one for the next command."""
    assert verdict(f"{command}; git log", LENIENT) == "ask"
    assert verdict(f"git log; {command}", LENIENT) == "ask"


@pytest.mark.parametrize(
    "command",
    [
        "printf '%s: 100%% done\\n' a b",
        "printf 'in %d items\\n' 5",
        "x=1; git log",
        "echo -n x",
        "wait",
        "wait 1",
        "jobs",
        "test -f x",
        "cd src",
        "true",
    ],
)
def test_builtins_that_change_nothing_are_commands_like_others(command: str) -> None:
    """A rule for them is enough."""
    assert verdict(command, LENIENT) == "allow"


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_every_builtin_of_bash_is_known() -> None:
    """The list is bash's own: a builtin of a newer bash has to be put among those that change the shell, or the others."""
    listed = subprocess.run(["bash", "-c", "compgen -b"], capture_output=True, text=True, check=True).stdout.split()
    assert set(listed) <= BUILTINS
    assert len(listed) > 50


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize("command", ASSIGNING)
def test_what_is_allowed_runs_no_foreign_program(command: str, tmp_path: Path) -> None:
    """The same in a real bash, in a folder with a program in each trap: it does not run where the guard allows."""
    (tmp_path / "bin").mkdir()
    for file in (tmp_path / "bin/git", tmp_path / "evil"):
        file.write_text("#!/bin/sh\n/usr/bin/touch canary\n")
        file.chmod(0o755)
    (tmp_path / "bin.txt").write_text("bin\n")
    for script in (f"{command}; git log", f"{command}\ngit log"):
        if verdict(script, LENIENT) == "allow":
            subprocess.run(["bash", "-c", script], cwd=tmp_path, capture_output=True, timeout=20, check=False)
    assert not (tmp_path / "canary").exists()


def test_the_parts_of_a_script() -> None:
    """A script is every command in it and every file that it opens, in order."""
    assert read_script("x=1 a '2 3'|b $x >> out 2>&1 && timeout 5 xargs c\ny=") == ParsedScript(
        "x=1 a '2 3'|b $x >> out 2>&1 && timeout 5 xargs c\ny=",
        (
            Part(("x=1", "a", "2 3"), "x=1 a '2 3'"),
            Part(("b", UnknownWords("$x")), "b $x"),
            Part((">", "out"), ">> out"),
            Part(("c", UnknownWords("...")), "timeout 5 xargs c"),
            Part(("y=",), "y="),
        ),
    )


def test_the_doubt_names_the_unsupported_syntax() -> None:
    """The question names the obstacle."""
    for script, doubt in [
        ("ls $(x)", "'$(x)': a command substitution cannot be checked"),
        ("ls; for i in a; do x; done", "'for i in a; do x; done': a for statement cannot be checked"),
        ("ls & x", "'&': it cannot be checked"),
        ("ls a*", "'a*': a word can be checked only if it is plain, quoted, or a single variable"),
    ]:
        assert read_script(script).doubt == doubt


def test_each_shell_for_itself() -> None:
    """bash redirects with `&>`; in a POSIX shell the same text is two commands."""
    for command in ("ls &> /tmp/a", "ls &>> /tmp/a"):
        assert verdict(command) == "allow"
        assert verdict(command, POSIX) == "ask"
    for shell in ("zsh", "", None):
        with pytest.raises(UsageError, match=r"list of tool names.*allow="):  # else it would guard nothing
            ShellApproval(["git status"])
        with pytest.raises(UsageError, match="use 'bash' or 'sh'"):
            ShellApproval(shell=shell)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("command", ALLOWED)
def test_what_bash_may_run_a_posix_shell_may_run(command: str) -> None:
    """Apart from `&>`, the supported syntax means the same in all shells."""
    assert verdict(command, POSIX) == "allow"


def test_a_star_of_a_rule_is_no_option() -> None:
    """`*` is any words but options, `**` any words, and so is `*` after `--`; a deny rule covers options as well."""
    commands = ["a", "a b", "a -b", "a b -- -c", "a -- -c", "a $x", "a -- $x", "a 'b c' d"]
    for rule, expected in [
        ("a *", ["a", "a b", "a 'b c' d"]),
        ("a **", commands),
        ("a -- *", ["a -- -c", "a -- $x"]),
        ("a * -- *", ["a b -- -c", "a -- -c", "a -- $x"]),
        ("a -*", ["a -b"]),
        ("a ?*", ["a b"]),
    ]:
        guard = ShellApproval(allow=[rule])
        assert [command for command in commands if verdict(command, guard) == "allow"] == expected, rule
    denied = [command for command in commands if verdict(command, ShellApproval(deny=["a * -b *"])) == "deny"]
    assert denied == ["a -b"]


def test_nested_commands_have_an_end() -> None:
    """Nested commands that run commands are followed to the innermost, or a person is asked."""
    assert verdict("nohup " * 40 + "ls") == "allow"
    assert verdict("nohup " * 40 + "rm") == "deny"
    assert verdict("nohup " * 1300 + "ls") == "allow"
    assert verdict("(" * 3_900 + "ls" + ")" * 3_900) == "ask"


def test_long_commands() -> None:
    """They cannot be parsed in a bounded time: a person is asked, or they are refused if deny rules exist."""
    long = "ls " + "a" * 8_000
    assert verdict(long, ShellApproval(allow=["ls **"])) == "ask"
    assert verdict(long, ShellApproval(allow=["ls **"], deny=["rm"])) == "deny"
    use = ToolUseBlock("t1", "bash", {"command": long})
    assert ShellApproval(deny=["rm"]).refused(use) == (
        "the shell command has 8003 characters; rules can check at most 8000"
    )


def test_words_that_are_not_plain_take_linear_time() -> None:
    """A word of any length that ends in something odd: a test that backtracks would not end."""
    assert verdict("echo " + "a" * 5_000 + "!", ShellApproval(allow=["echo **"])) == "ask"


def test_rules_that_cannot_be_meant() -> None:
    """A rule without a command, with an open quote, or a text where a list belongs, is refused when the hook is made."""
    for allow in (["*"], ["** x"], [""], ["ls '"], "ls"):
        with pytest.raises(UsageError):
            ShellApproval(allow=allow)


async def test_lasting_answers_hold_for_the_same_text_only() -> None:
    """`session` for one command does not cover another one; it is not offered for commands that are not understood."""
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
    """Allowed commands run; denied and unparsed ones do not, and the provider gets the reasons."""
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
    uses = [ScriptedCall("bash", {"command": c}, f"t{n}") for n, c in enumerate(commands)]
    calls = (*uses, ScriptedCall("other", {"command": "rm"}, "t9"))
    async with wired.serve([WireReply("", calls=calls), Say("Done.")]) as server:
        agent = Agent(
            "a", wired.model(server), tools=[bash, other], hooks=[ShellApproval(allow=["ls *", "head -1"], deny=["rm"])]
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
        "Denied: bash needs approval, but there is no asker ('ls $(': it cannot be parsed)",
        "done",
    ]
    assert ran == ["ls | head -1"]
