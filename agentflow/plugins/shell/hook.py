"""`ShellApproval`: splits shell commands into parts, and evaluates each part.

Rules:

1. A script runs without asking only if it is fully understood, each part is allowed, and no part could match a deny rule.
2. If one part matches a deny rule, the whole script is refused, even if a person has approved it. A script that is not
   understood is refused if it contains the words of a deny rule anywhere.
3. The user is asked about syntax that the module `parts` does not understand, and about values that are unknown before the
   script runs.
4. A rule is compared by words: `git status` does not allow `git status; rm x` or `git statusx`. A `*` in an allow rule does not
   match options.

It is a safety net, not a sandbox: it does not check the effect of an allowed command's arguments. You should allow only
commands that are harmless with any arguments.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, MutableSet, Sequence
from fnmatch import fnmatchcase
from posixpath import normpath
from typing import TypeAlias, get_args

from agentflow.errors import UsageError
from agentflow.plugins._matching import strings
from agentflow.plugins.approval.hook import Approval, Asker
from agentflow.plugins.shell.parts import (
    MAX_SCRIPT_LENGTH,
    ParsedScript,
    Part,
    Shell,
    UnknownWords,
    Word,
    read_script,
    runs_others,
)
from agentflow.vocabulary.messages import ToolUseBlock


class ShellApproval(Approval):
    """Asks before a shell command runs, unless rules decide about each of its parts.

    A rule is a command. A separate `*` matches any number of arguments that do not begin with `-`; `**` matches any arguments,
    including options; inside a word, `*` matches any characters. `"git log *"` allows `git log` with names of commits and
    files, `"git log"` only the bare command. Deny rules apply with any arguments and options, and to the command under any
    path (a rule for `rm` covers `/bin/rm`). Redirections to and from files are parts too: `"> /tmp/*"`, `"< *"`. Assignments
    belong to their command: `"LANG=* sort *"`.

    Lasting answers (`"session"`, `"always"`) apply to the same text only. For a command of more than 8,000 characters,
    which cannot be parsed in a limited time, a person is asked; if there are deny rules, it is refused.

    Priority 61 (checks), a guard. Needs the extra `shell` (tree-sitter).

    Args:
        tools: Patterns of the tools that take a shell command; other tools are ignored.
        argument: The argument with the command.
        shell: The shell that the tool uses, as `[shell, "-c", command]`: `"bash"`, or `"sh"` for any POSIX shell.
        allow: Rules for commands that run without asking.
        deny: Rules for commands that never run.
        ask: As in `Approval`, like the arguments after it.

    Example:
        >>> guard = ShellApproval(allow=["git status", "git log *", "head -[0-9]*"], deny=["rm"])
        >>> guard.allowed(ToolUseBlock("t1", "bash", {"command": "git log main | head -1"}))
        True
        >>> guard.allowed(ToolUseBlock("t1", "bash", {"command": "git log --output=notes.txt"}))
        False
        >>> guard.refused(ToolUseBlock("t1", "bash", {"command": "git log `env rm -rf /`"}))
        "the shell command names 'rm', and rm is not allowed here"
    """

    priority = 61

    def __init__(
        self,
        tools: Sequence[str] = ("bash", "shell"),
        argument: str = "command",
        *,
        shell: Shell = "bash",
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        ask: Asker | None = None,
        suspend: bool = False,
        always: MutableSet[str] | None = None,
    ) -> None:
        super().__init__(ask=ask, suspend=suspend, always=always)
        self.only_tools = strings("ShellApproval(tools=...)", tools)
        if any(" " in name for name in tools):
            raise UsageError(
                f"ShellApproval({list(tools)!r}): the first argument is a list of tool names, which contain no spaces. "
                "Pass allowed commands as allow=[...]."
            )
        if shell not in get_args(Shell):
            raise UsageError(f"ShellApproval(shell={shell!r}): use 'bash' or 'sh'; other shells have other grammars.")
        self.argument = argument
        self.shell: Shell = shell
        self._allow = tuple(_words(rule) for rule in strings("ShellApproval(allow=...)", allow))
        self._deny = tuple(_DenyRule(_words(rule)) for rule in strings("ShellApproval(deny=...)", deny))

    def refused(self, use: ToolUseBlock) -> str | None:
        """Return why the command must not run, if it matches a deny rule."""
        script = self._script(use)
        if self._deny and len(script.text) > MAX_SCRIPT_LENGTH:
            return f"the shell command has {len(script.text)} characters; rules can check at most {MAX_SCRIPT_LENGTH}"
        for rule in self._deny:
            named = rule.named_in(script)
            if named is not None:
                return f"the shell command {named}, and {rule.text} is not allowed here"
        return None

    def allowed(self, use: ToolUseBlock) -> bool:
        """Return whether every part may run without asking."""
        return self._objection(self._script(use)) is None

    def covers(self, use: ToolUseBlock) -> str:
        """Return the command's text as the scope of lasting answers; empty if it is not understood."""
        script = self._script(use)
        if script.doubt is not None or any(part.doubt is not None for part in script.parts):
            return ""
        return f"{use.name}: {use.input[self.argument]}"

    def reason(self, use: ToolUseBlock) -> str:
        """Return why the script cannot be checked, or the first part that no rule allows."""
        return self._objection(self._script(use)) or super().reason(use)

    def _script(self, use: ToolUseBlock) -> ParsedScript:
        command: object = use.input.get(self.argument)
        if not isinstance(command, str):
            return ParsedScript(use.raw, doubt=f"there is no text in its argument {self.argument!r}")
        return read_script(command, self.shell)

    def _objection(self, script: ParsedScript) -> str | None:
        """Return why a script must not run without asking."""
        if script.doubt is not None:
            return script.doubt
        objections = (self._objection_to(part) for part in script.parts)
        return next((objection for objection in objections if objection is not None), None)

    def _objection_to(self, part: Part) -> str | None:
        if part.doubt is not None:
            return f"{part.text!r}: {part.doubt}"
        for rule in self._deny:
            if rule.may_be(part):
                return f"{part.text!r} may turn out to be {rule.text}"
        if any(_matches(rule, part.words, _allowing) for rule in self._allow):
            return None
        return f"no rule allows {part.text!r}"


def _words(rule: str) -> list[str]:
    try:
        words = shlex.split(rule)
    except ValueError as error:
        raise UsageError(f"ShellApproval: the rule {rule!r} cannot be split into words: {error}") from error
    if not words or words[0] in _STARS:
        raise UsageError(
            f"ShellApproval: the rule {rule!r} must begin with the name of a command, such as 'git log *'."
        )
    return words


# ---- matching


_STARS = ("*", "**")
_Step: TypeAlias = Callable[[Sequence[str], int, Word], Iterable[int]]
"""Takes a rule, a position in it, and the next word of the command; returns the possible positions of the following word."""


def _matches(rule: Sequence[str], words: Sequence[Word], step: _Step) -> bool:
    positions = _past_stars(rule, (0,))
    for word in words:
        positions = _past_stars(rule, (after for position in positions for after in step(rule, position, word)))
    return len(rule) in positions


def _past_stars(rule: Sequence[str], positions: Iterable[int]) -> set[int]:
    found: set[int] = set()
    for position in positions:
        found.add(position)
        while position < len(rule) and rule[position] in _STARS:
            position += 1
            found.add(position)
    return found


def _allowing(rule: Sequence[str], position: int, word: Word) -> tuple[int, ...]:
    """Step of an allow rule, which matches only what is certain: an unknown word may be an option, and a `*` does not match
    options, except after `--`.
    """
    if position == len(rule):
        return ()
    pattern = rule[position]
    if pattern in _STARS:
        option = isinstance(word, UnknownWords) or word.startswith("-")
        return () if option and pattern == "*" and "--" not in rule[:position] else (position,)
    if isinstance(word, UnknownWords) or (word.startswith("-") and not pattern.startswith("-")):
        return ()
    if ".." in word.split("/") and ".." not in pattern.split("/"):
        return ()  # `> out/*` is not `> out/../x`
    return (position + 1,) if fnmatchcase(word, pattern) else ()


def _naming(rule: Sequence[str], position: int, word: Word) -> tuple[int, ...]:
    """Step of a deny rule that matches for certain; its stars match options too."""
    if position == len(rule):
        return ()
    if rule[position] in _STARS:
        return (position,)
    return (position + 1,) if isinstance(word, str) and fnmatchcase(word, rule[position]) else ()


def _maybe_naming(rule: Sequence[str], position: int, word: Word) -> Iterable[int]:
    """Step of a deny rule that may match: an unknown word may become no word, or several."""
    return range(position, len(rule) + 1) if isinstance(word, UnknownWords) else _naming(rule, position, word)


class _DenyRule:
    """A deny rule."""

    def __init__(self, words: Sequence[str]) -> None:
        self.text = " ".join(words)
        self._words = (*words, "**")
        self._mention = _mention(words)

    def named_in(self, script: ParsedScript) -> str | None:
        """Describe the denied part of the script, such as "runs 'rm x'"; None if nothing is denied."""
        for part in script.parts:
            if any(_matches(self._words, form, _naming) for form in _forms(part)):
                return f"runs {part.text!r}"
        if script.doubt is not None or any(part.doubt is not None or runs_others(part) for part in script.parts):
            # Quotes and escapes are removed first, because they can split a name, as in `r"m"`.
            found = self._mention.search(re.sub(r"\\\n|['\"\\]", "", script.text))
            return None if found is None else f"names {found[0]!r}"
        return None

    def may_be(self, part: Part) -> bool:
        """Return whether a part could match the rule."""
        return any(_matches(self._words, form, _maybe_naming) for form in _forms(part))


def _forms(part: Part) -> list[tuple[Word, ...]]:
    """Return the forms of a command for deny rules: unchanged, without assignments, without the path; for a file, its
    normalized path."""
    words = part.words
    while len(words) > 1 and isinstance(words[0], str) and re.match(r"\w+=", words[0]):
        words = words[1:]
    forms = [part.words, words]
    match words:
        case (">" | "<" as operator, str() as file):
            forms.append((operator, normpath(file).replace("//", "/")))  # POSIX paths may begin with two slashes
        case (str() as name, *arguments):
            forms.append((name.rpartition("/")[2], *arguments))
        case _:
            pass
    return forms


def _mention(words: Sequence[str]) -> re.Pattern[str]:
    """Create a pattern that finds a rule in a text."""
    redirection = words[0] in ("<", ">")
    text = words[0] if redirection else rf"(?<![\w.-]){_glob(words[0])}"
    between = r"\s*" if redirection else r"\s+"
    for word in words[1:]:
        if word in _STARS:
            between = r"\s(?:.*\s)?"
        else:
            text, between = text + between + _glob(word), r"\s+"
    return re.compile(rf"{text}(?![\w./-])" if re.match(r"\w", words[-1][-1]) else text, re.DOTALL)


def _glob(word: str) -> str:
    text = re.sub(r"\\\[.+?\\\]|\\\?", r"\\S", re.escape(word))
    return text.replace(r"\*", r"\S*")
