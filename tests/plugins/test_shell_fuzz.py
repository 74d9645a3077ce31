"""Shell commands by the thousand: real shells run what `ShellApproval` allows, beside a file that must survive.

`AGENTFLOW_SHELL_FUZZ=500000` runs that many instead of 2,000 (CI: 4,000 and 20,000), `AGENTFLOW_SHELL_FUZZ_SEED=7` others.
"""

import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import islice
from pathlib import Path

import pytest
from thorough import THOROUGH

from agentflow.plugins.shell import ShellApproval
from agentflow.plugins.shell.parts import Shell
from agentflow.vocabulary.messages import ToolUseBlock

COUNT = int(os.environ.get("AGENTFLOW_SHELL_FUZZ", "4000" if THOROUGH else "2000"))
SEED = int(os.environ.get("AGENTFLOW_SHELL_FUZZ_SEED", "1"))
RUN_BY: dict[Shell, str] = {"bash": "bash", "sh": "dash"}

ALLOW = [
    "git status",
    "git log *",
    "git log -[0-9]* *",
    "git log * -- *",
    "head *",
    "head -n[0-9]* *",
    "cat *",
    "cat -- *",
    "sort *",
    "find *",
    "find * -name *",
    "echo **",
    "true **",
    "read *",
    "test **",
    "printf **",
    "wait **",
    "x=*",
    "y=*",
    "x=* echo **",
    "x=* git log *",
    "> out/*",
    "< in/*",
]
"""No deny rules: what is allowed has to be harmless by itself. `git log --output=F`, `sort -o F`, `find -delete` are not."""

GIT = """#!/bin/sh
for word; do case "$word" in --) break;; --output=*) echo overwritten > "${word#--output=}";; esac; done
"""
TOOLS = ("cat", "env", "find", "head", "nice", "nohup", "rm", "sort", "stdbuf", "timeout", "xargs")

# ---- what commands are made of

HARM = ["rm VICTIM", "rm -f VICTIM", "git log --output=VICTIM", "echo x > VICTIM", "'rm' VICTIM", "env rm VICTIM"]
ANY = [
    "echo",
    "echo",
    "true",
    "printf %s",
    "test -n",
    "xargs echo",
    "y=1 echo",
    "nohup echo",
    "builtin echo",
    "nice echo",
]
"""What the rules allow with any words."""
SOME = [
    *[
        "git log",
        "git log -3",
        "git log --",
        "git log main --",
        "x=1 git log",
        "env git log",
        "exec git log",
        "time git log",
    ],
    *[
        "git status",
        "head",
        "head -n1",
        "cat",
        "cat --",
        "sort",
        "sort -o",
        "find in",
        "find in -name",
        "read",
        "command cat",
    ],
    *[
        "test",
        "test -v",
        "printf",
        "printf -v",
        "wait -p",
        "nice",
        "env",
        "timeout 5",
        "xargs",
        "xargs git log",
        "find",
        "bash -c",
    ],
]
"""What they allow with some."""
WORDS = [
    *[
        "a",
        "main",
        "HEAD~1",
        "a/b",
        "in/a",
        "-1",
        "-n",
        "--",
        "+x",
        "x=y",
        "a:b,c%d@e^f",
        "''",
        '""',
        "12",
        "2",
        "-",
        "'a b'",
    ],
    *[
        "$x",
        '"$x"',
        "${x}",
        '"${x}"',
        "$y",
        "$_",
        "$HOME",
        '"$y"',
        "--output=VICTIM",
        "'--output=VICTIM'",
        '--out"put="VICTIM',
    ],
    *[
        "';HARM;'",
        '";HARM;"',
        "'$(HARM)'",
        "'`HARM`'",
        "'a[$(HARM)]'",
        "'a[`HARM`]'",
        r'"\$(HARM)"',
        r'"\`HARM\`"',
        r'"\\"',
    ],
    *[
        '"a\'b"',
        "'a\"b'",
        "'\\'",
        r'"a\"b"',
        r'"\a"',
        "'a\n HARM\nb'",
        '"a\nHARM\n"',
        "'#'",
        "'é'",
        '"é HARM"',
        "a'b'\"c\"d",
    ],
    *[
        "VICTIM",
        "out/../VICTIM",
        "'{a,b}'",
        "'*'",
        "'|'",
        "';'",
        "'&&'",
        "'>'",
        "'> VICTIM'",
        "'<<E'",
        "'~'",
        "a~",
        "'(HARM)'",
    ],
]
VALUES = [
    *[
        "'5 rm VICTIM'",
        "'FOO rm VICTIM'",
        "'0 rm VICTIM'",
        "'1 rm VICTIM'",
        "'a[$(HARM)]'",
        "'$(HARM)'",
        "'`HARM`'",
        "'; HARM'",
    ],
    *[
        "--output=VICTIM",
        "' --output=VICTIM'",
        "'in -delete'",
        "'-o VICTIM'",
        "out/../VICTIM",
        "VICTIM",
        "a",
        "''",
        "'a b'",
    ],
]
FILES = [
    *[
        "> out/a",
        ">> out/b",
        "2> out/c",
        "2>&1",
        ">&2",
        "> /dev/null",
        "2>/dev/null",
        "< in/a",
        "< in/b",
        '> "out/a b"',
        ">out/d",
    ],
    *[
        "> VICTIM",
        "> out/../VICTIM",
        "> $x",
        "&> out/e",
        "&>> out/f",
        ">& VICTIM",
        ">| VICTIM",
        "<> VICTIM",
        "2> VICTIM",
    ],
    *["3> out/g", "12> out/h", "> 'out/'x", "< in/../VICTIM", "1>&2", "&> VICTIM"],
]
TAME = [
    "a",
    "main",
    "HEAD~1",
    "a/b",
    "in/a",
    "x=y",
    "''",
    "'a b'",
    "';HARM;'",
    "'$(HARM)'",
    "'`HARM`'",
    "'a\n HARM\nb'",
    '"HARM"',
    "'|'",
]
LINKS = [
    "; ",
    "; ",
    " | ",
    " | ",
    " && ",
    " || ",
    "\n",
    " |\n",
    ";\n",
    "|",
    ";",
    "&&",
    "\n\n",
    " &&\n",
    " ;",
    " & ",
    "|&",
    " & \n",
]
SAFE_LINKS = ["; ", " | ", " && ", " || ", "\n", ";\n"]
SAFE_FILES = ["> out/a", ">> out/b", "2> out/c", "2>&1", "> /dev/null", "< in/a", '> "out/a b"', "< /dev/null"]
SPLINTERS = [
    *["$(HARM)", "`HARM`", '"$(HARM)"', '"`HARM`"', "${x:-$(HARM)}", "${x:=`HARM`}", "${x:-`HARM`}", '"${x:-`HARM`}"'],
    *[
        "${y:+`HARM`}",
        "${x:x}",
        "${x@P}",
        "${!x}",
        "$[x]",
        "$((x))",
        "$((`HARM`))",
        "$[`HARM`]",
        "<(HARM)",
        ">(HARM)",
        "${x",
        "}",
    ],
    *[
        "; HARM",
        "\nHARM\n",
        " & HARM",
        "|HARM",
        "&&HARM",
        " || HARM",
        "(HARM)",
        "{ HARM; }",
        "HARM",
        "; HARM #",
        "& HARM",
        "\\\nHARM",
    ],
    *[
        "`git log \\`HARM\\``",
        '`git log "\\$(HARM)"`',
        "`head '` ; HARM ; git log `'`",
        "$'\\'; HARM; #'",
        "$'\\'",
        '$"$(HARM)"',
    ],
    *[
        '"${x:-\'}"; HARM; head "\'}"',
        "<<E\n$(HARM)\nE\n",
        "<<E\n${x:-'}\n$(HARM)\n'}\nE\n",
        "<<'E'\n",
        "\nE\n",
        "<<E\n",
        "<<-E\n",
    ],
    *[
        "<<<`HARM`",
        "'",
        '"',
        "\\",
        "`",
        "$",
        "(",
        ")",
        "{",
        "}",
        "#",
        " #",
        "!",
        "~",
        "*",
        "[",
        "]",
        "=",
        "$'",
        '$"',
        "'\\''",
        "&",
        "|",
    ],
    *[
        ";",
        "\n",
        "\\\n",
        " ",
        "\t",
        "\r",
        "\x00",
        "\xa0",
        ">",
        "<",
        "2>",
        "case a in a) HARM;; esac",
        "if HARM; then :; fi",
        "do",
        "fi",
    ],
    *[
        "f() { HARM; }; f",
        "git() { rm VICTIM; }\n",
        "alias git='HARM;'\n",
        "trap 'HARM' EXIT;",
        "eval 'HARM'",
        "bash -c 'HARM'",
        "$x",
    ],
    *[
        "nice -n $x git status",
        "env -u $x git status",
        "stdbuf -o $x git status",
        "xargs -n $x git log",
        "nice -n $x",
        "env -u $x",
    ],
    *[
        "x='a[$(HARM)]'; ",
        "x='5 rm VICTIM'; ",
        "x='FOO rm VICTIM'; ",
        "x='1 rm VICTIM'; ",
        "x='0 rm VICTIM'; ",
        "y=1; ",
    ],
    *[
        "! ",
        "time ",
        "coproc ",
        "exec ",
        "env ",
        "function git { rm VICTIM; }\n",
        "--output=VICTIM",
        "let 'x=a[$(HARM)]'",
        "declare -i y=x;",
    ],
    *[
        "read 'a[$(HARM)]' < in/a",
        "test -v 'a[$(HARM)]'",
        "printf -v 'a[$(HARM)]' x",
        "test -v $x",
        "[[ x -eq 1 ]]",
        "[ -v 'a[`HARM`]' ]",
    ],
]


BYPASSES = [
    *[
        "git log ${x:=`HARM`}",
        "git log ${x:-`HARM`}",
        'git log "${x:-`HARM`}"',
        "y=1; git log ${y:+`HARM`}",
        "git log `HARM`",
    ],
    *[
        'git log `git log "\\$(HARM)"`',
        r"git log `git log \`HARM\``",
        "head <<E\n${x:-'}\n$(HARM)\n'}\nE",
        "echo $(HARM)",
    ],
    *[
        "git log `head '` ; HARM ; git log `'`",
        'git log "${x:-\'}"; HARM; head "\'}"',
        "git log $'\\'; HARM; #'",
        "cat <(HARM)",
    ],
    *[
        "x='a[$(HARM)]'; git log ${x:x}",
        "x='a[$(HARM)]'; git log $[x]",
        "x='a[$(HARM)]'; git log $((x))",
        "x='$(HARM)'; echo ${x@P}",
    ],
    *[
        "x='5 rm VICTIM'; nice -n $x git status",
        "x='FOO rm VICTIM'; env -u $x git status",
        "x='--output=VICTIM'; git log $x",
    ],
    *[
        "x='0 rm VICTIM'; stdbuf -o $x git status",
        "echo 1 | xargs -n $x git log",
        "x='1 rm VICTIM'; echo 1 | xargs -n $x git log",
    ],
    *[
        "git log --output=VICTIM",
        "echo a > out/../VICTIM",
        "echo a & HARM",
        "git() { rm VICTIM; }\ngit log",
        "function git { rm VICTIM; }\ngit log",
    ],
    *[
        "test -v 'a[$(HARM)]'",
        "printf -v 'a[$(HARM)]' x",
        "read 'a[$(HARM)]' < in/a",
        "x='a[$(HARM)]'; test -v \"$x\"",
        "sort -o VICTIM",
    ],
    *[
        "echo --output=VICTIM | xargs git log",
        "read x < in/a; git log $x",
        "x=VICTIM; echo > $x",
        "find VICTIM -delete",
        "eval HARM",
    ],
]
"""What got past an earlier guard, and its like."""


class Maker:
    """Makes commands: plain ones, plain ones with something stuck into them, old bypasses, and heaps of splinters."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)

    def commands(self, count: int) -> Iterator[str]:
        """So many of them."""
        pick, chance = self.dice.choice, self.dice.random
        for _ in range(count):
            sort = chance()
            command = self.heap() if sort < 0.1 else self.bypass() if sort < 0.2 else self.plain()
            while chance() < (0.05 if sort > 0.6 else 0.5):
                command = self.hurt(command)
            yield re.sub("HARM", lambda _: pick(HARM), command)

    def plain(self) -> str:
        """What a model might write."""
        made = self.one()
        for _ in range(self.dice.choice((0, 0, 1, 1, 2, 3))):
            made += self.dice.choice(LINKS if self.dice.random() < 0.2 else SAFE_LINKS) + self.one()
        return made

    def one(self) -> str:
        """One command."""
        pick, chance = self.dice.choice, self.dice.random
        sort = chance()
        if sort < 0.1:
            return f"{pick('xy')}={pick(VALUES)}"
        name, words = (pick(ANY), WORDS) if sort < 0.5 else (pick(SOME), TAME if sort < 0.9 else WORDS)
        parts = [name, *(pick(words) for _ in range(pick((0, 1, 1, 2, 3))))]
        if chance() < 0.2:
            parts.insert(self.dice.randint(1, len(parts)), pick(FILES if chance() < 0.3 else SAFE_FILES))
        return pick((" ", " ", " ", "  ", "\t")).join(parts)

    def bypass(self) -> str:
        """An old acquaintance."""
        return "; ".join(self.dice.sample([self.dice.choice(BYPASSES), self.one()], k=2))

    def hurt(self, command: str) -> str:
        """Insert a fragment, remove a part, or repeat a part."""
        here, there = sorted(self.dice.choices(range(len(command) + 1), k=2))
        match self.dice.randrange(6):
            case 0:
                return command[:here] + command[there:]
            case 1:
                return command[:there] + command[here:]
            case _:
                if self.dice.random() < 0.5:  # between words
                    here = self.dice.choice([0, len(command), *(m.end() for m in re.finditer(r"\s", command))])
                return command[:here] + self.dice.choice(SPLINTERS) + command[here:]

    def heap(self) -> str:
        """A random sequence of fragments."""
        pick = self.dice.choice
        heap = [pick(pick((SPLINTERS, SPLINTERS, WORDS, FILES, LINKS))) for _ in range(pick((1, 2, 2, 3, 4, 6)))]
        return f"{pick(ANY + SOME)} " + pick(("", " ", " ")).join(heap)


# ---- what becomes of them


def allowed_by(guard: ShellApproval) -> Callable[[str], bool]:
    return lambda command: guard.allowed(ToolUseBlock("t1", "bash", {"command": command}))


class Sandbox:
    """A folder with a canary, and nothing on `PATH` except the commands in the rules and some dangerous ones."""

    def __init__(self, folder: Path, shell: Shell) -> None:
        program = shutil.which(RUN_BY[shell])
        if program is None:
            pytest.skip(f"{RUN_BY[shell]} is not installed")
        self.folder, self.program = folder, program
        (folder / "bin").mkdir(parents=True)
        for tool in TOOLS:
            found = shutil.which(tool)
            assert found is not None, tool
            (folder / "bin" / tool).symlink_to(found)
        (folder / "bin" / "git").write_text(GIT)
        (folder / "bin" / "git").chmod(0o755)
        xargs = shutil.which("xargs")
        assert xargs is not None
        self.run_each = [xargs, "-0", "-n", "1", "-P", str(os.cpu_count() or 1), program, "-c"]

    def survives(self, commands: Sequence[str]) -> bool:
        """Run each as the tool would; whether all that is not in `out` is as it was."""
        home = self.folder / "home"
        shutil.rmtree(home, ignore_errors=True)
        (home / "in").mkdir(parents=True)
        (home / "out").mkdir()
        before = {"VICTIM": "precious\n", "in/a": "--output=VICTIM\n", "in/b": "a[$(rm VICTIM)]\n"}
        for name, text in before.items():
            (home / name).write_text(text)
        done = subprocess.run(
            self.run_each,
            cwd=home,
            env={"PATH": str(self.folder / "bin"), "HOME": str(home), "LC_ALL": "C.UTF-8"},
            input=b"".join(command.encode() + b"\0" for command in commands),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60 + len(commands) / 20,
            check=False,
        )
        assert done.returncode in (0, 123), f"not all commands were run (xargs: {done.returncode})"
        files = [file for file in home.rglob("*") if file.is_file() and file.parent != home / "out"]
        return {str(file.relative_to(home)): file.read_text() for file in files} == before

    def culprits(self, commands: Sequence[str], most: int = 5) -> list[str]:
        """The commands that do harm; a few are enough."""
        if not commands or most < 1 or self.survives(commands):
            return []
        if len(commands) == 1:
            return list(commands)
        middle = len(commands) // 2
        found = self.culprits(commands[:middle], most)
        return found + self.culprits(commands[middle:], most - len(found))


@cache
def made(count: int) -> list[str]:
    """The commands, each once."""
    return list(dict.fromkeys(Maker(SEED).commands(count)))


@pytest.mark.ci
@pytest.mark.parametrize("shell", ["bash", "sh"])
@pytest.mark.parametrize("count", [COUNT, pytest.param(20_000, marks=pytest.mark.ci)])
def test_what_is_allowed_does_no_harm(tmp_path: Path, count: int, shell: Shell) -> None:
    """Thousands of commands, half of them plain and half of them hostile: the allowed ones leave the canary
    unchanged.
    """
    sandbox = Sandbox(tmp_path, shell)
    allowed = allowed_by(ShellApproval(shell=shell, allow=ALLOW))
    run = [command for command in made(count) if allowed(command)]
    assert len(run) > count // 4, "too few are allowed to show anything"
    assert sum("VICTIM" in command for command in run) > count // 10, "too few of those speak of harm"
    assert sandbox.culprits(run) == [], f"seed {SEED}"


HOLES = {
    "backticks": (r"`[^`]*`", "a"),
    "backticks in backticks": (r"`[^`]*\\`[^`]*\\`[^`]*`", "a"),
    "command substitutions": (r"\$\([^)]*\)", "a"),
    "process substitutions": (r"<\(\w[^)]*\)", "a"),
    "expansions with words": (r"\$\{\w+:?[-=+?][^}]*\}", "a"),
    "substrings": (r"\$\{x:x\}", "a"),
    "prompts": (r"\$\{x@P\}", "a"),
    "old arithmetic": (r"\$\[[^]]*\]", "a"),
    "arithmetic": (r"\$\(\([^)]*\)\)", "a"),
    "here-documents": (r"<<-?E\n(?:.*\n)*?E\b\n?", "a"),
    "dollar quotes": (r"\$'(?:[^'\\]|\\.)*'", "a"),
    "the background": (r"&(?=[ \n])", "a"),
    "functions": (r"git\(\) \{[^}]*\}|function git \{[^}]*\}", "echo"),
    "options": (r"--out(?:put=|\"put=\")", "a"),
    "options of sort": (r"(?<=sort )-o", "a"),
    "options of find": (r"-delete", "a"),
    "an option's value": (r" -[nuo] \$x", ""),
    "an option of an option": (r"stdbuf -o \$x", "nice"),
    "variables that are options": (r"(?<=git log )\$x", "a"),
    "words that xargs reads": (r"xargs git log", "echo"),
    "names of variables": (r"(?<=[dv] )'a\[[^']*\]'", "a"),
    "variables that name variables": (r'(?<=-v )"\$x"', "a"),
    "files that are variables": (r"> \$x", "> out/a"),
    "a way up": (r"(?<=out/)\.\.(?=/)", "a"),
    "eval": (r"\beval\b", "echo"),
}
"""What a guard might overlook: the text, and what it would take that for."""
IN_DASH_ALONE = ("dollar quotes",)


@cache
def made_once() -> list[str]:
    """Commands for all holes."""
    return list(Maker(1).commands(20_000))


@pytest.mark.ci
@pytest.mark.parametrize("hole", HOLES)
def test_a_guard_with_a_hole_is_found_out(tmp_path: Path, hole: str) -> None:
    """The same commands kill the canary of a guard that overlooks one thing."""
    shell: Shell = "sh" if hole in IN_DASH_ALONE else "bash"
    allowed = allowed_by(ShellApproval(shell=shell, allow=ALLOW))
    pattern, other = re.compile(HOLES[hole][0]), HOLES[hole][1]
    suspects = (
        command
        for command in made_once()
        if pattern.search(command) and "\0" not in command and allowed(pattern.sub(lambda _: other, command))
    )
    sandbox = Sandbox(tmp_path, shell)
    assert not all(sandbox.survives(some) for some in batched(suspects, 20))


def batched(commands: Iterator[str], size: int) -> Iterator[list[str]]:
    """So many at a time; `itertools.batched` is of Python 3.12."""
    while some := list(islice(commands, size)):
        yield some
