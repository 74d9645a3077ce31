"""`ShellApproval`: shell commands are taken apart, and each part is judged.

Rules:

1. The whole runs without asking only if all of it is understood, each of its parts is allowed, and none might be what a deny
   rule names.
2. One part that a deny rule names refuses the whole, approved or not. In what is not understood, the name anywhere does.
3. What is not of the small part of the grammar that `shell_parts` understands, or not known before it runs, is asked about.
4. A rule is compared with words, not with text: `git status` does not allow `git status; rm x` or `git statusx`. A `*` of an
   allow rule is no option.

A seat belt, no sandbox: what an allowed command does with its arguments is its own affair. Allow what is harmless with any.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, MutableSet, Sequence
from fnmatch import fnmatchcase
from posixpath import normpath
from typing import TypeAlias, get_args

from agentflow.errors import UsageError
from agentflow.messages import ToolUseBlock
from agentflow.plugins.approval import Approval, Asker
from agentflow.plugins.shell_parts import LONGEST, Part, Script, Shell, Some, Word, read_script, runs_others

__all__ = ["ShellApproval"]


class ShellApproval(Approval):
    """Asks before a shell command runs, unless rules say yes or no to each of its parts.

    A rule is a command in words. `*` as a word is any number of words that do not begin with `-`; `**` is any words, options
    too; inside a word `*` stands for any characters. `"git log *"` allows `git log` with names of commits and files,
    `"git log"` only that. Deny rules cover whatever follows, options too, and a command by any path (`rm` is `/bin/rm` too).
    Files that are written and read by redirection are parts too: `"> /tmp/*"`, `"< *"`; so are assignments: `"LANG=* sort *"`.

    Lasting answers (`"session"`, `"always"`) hold for the same text only. A command of more than 8,000 characters is asked
    about, or refused where there are deny rules: it cannot be parsed in a bounded time.

    Priority 61 (checks), a guard. Needs the extra `shell` (tree-sitter).

    Args:
        tools: Patterns of the tools that take a shell command; other tools are not looked at.
        argument: The argument that holds it.
        shell: Which shell the tool runs it with, as `[shell, "-c", command]`: `"bash"`, or `"sh"` for any POSIX shell.
        allow: Rules for what runs without asking.
        deny: Rules for what never runs.
        ask: As in `Approval`, like the rest.

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
        if isinstance(tools, str) or isinstance(allow, str) or isinstance(deny, str):
            raise UsageError("ShellApproval: tools=, allow= and deny= take lists of texts, not one text.")
        if any(" " in name for name in tools):
            raise UsageError(
                f"ShellApproval({list(tools)!r}): what comes first are names of tools, and no tool's name has a space. "
                "Commands that may run are allow=[...]."
            )
        if shell not in get_args(Shell):
            raise UsageError(
                f"ShellApproval(shell={shell!r}): legal are 'bash' and 'sh'; other shells read other grammars."
            )
        self.only_tools = tuple(tools)
        self.argument = argument
        self.shell: Shell = shell
        self._allow = tuple(_words(rule) for rule in allow)
        self._deny = tuple(_Denied(_words(rule)) for rule in deny)

    def refused(self, use: ToolUseBlock) -> str | None:
        """Why the command must not run: what a deny rule names."""
        script = self._script(use)
        if self._deny and len(script.text) > LONGEST:
            return f"the shell command has {len(script.text)} characters, and rules are applied to {LONGEST} at most"
        for rule in self._deny:
            named = rule.named_in(script)
            if named is not None:
                return f"the shell command {named}, and {rule.text} is not allowed here"
        return None

    def allowed(self, use: ToolUseBlock) -> bool:
        """Whether every part may run without asking."""
        return self._objection(self._script(use)) is None

    def covers(self, use: ToolUseBlock) -> str:
        """Lasting answers hold for this text, as long as it is understood."""
        script = self._script(use)
        if script.doubt is not None or any(part.doubt is not None for part in script.parts):
            return ""
        return f"{use.name}: {use.input[self.argument]}"

    def why(self, use: ToolUseBlock) -> str:
        """What is in doubt, or the first part that no rule allows."""
        return self._objection(self._script(use)) or super().why(use)

    def _script(self, use: ToolUseBlock) -> Script:
        command: object = use.input.get(self.argument)
        if not isinstance(command, str):
            return Script(use.raw, doubt=f"there is no text in its argument {self.argument!r}")
        return read_script(command, self.shell)

    def _objection(self, script: Script) -> str | None:
        """Why a script may not run without asking."""
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
        raise UsageError(f"ShellApproval: the rule {rule!r} begins with the name of a command, such as 'git log *'.")
    return words


# ---- comparing words


_STARS = ("*", "**")
_Step: TypeAlias = Callable[[Sequence[str], int, Word], Iterable[int]]
"""Gets a rule, a place in it, and the next word of the command; returns the places where the word after that may be."""


def _matches(rule: Sequence[str], words: Sequence[Word], step: _Step) -> bool:
    places = _past_stars(rule, (0,))
    for word in words:
        places = _past_stars(rule, (after for place in places for after in step(rule, place, word)))
    return len(rule) in places


def _past_stars(rule: Sequence[str], places: Iterable[int]) -> set[int]:
    found: set[int] = set()
    for place in places:
        found.add(place)
        while place < len(rule) and rule[place] in _STARS:
            place += 1
            found.add(place)
    return found


def _allowing(rule: Sequence[str], place: int, word: Word) -> tuple[int, ...]:
    """For certain: an unknown word may be an option, and a `*` is none, unless it stands behind `--`."""
    if place == len(rule):
        return ()
    pattern = rule[place]
    if pattern in _STARS:
        option = isinstance(word, Some) or word.startswith("-")
        return () if option and pattern == "*" and "--" not in rule[:place] else (place,)
    if isinstance(word, Some) or (word.startswith("-") and not pattern.startswith("-")):
        return ()
    if ".." in word.split("/") and ".." not in pattern.split("/"):
        return ()  # `> out/*` is not `> out/../x`
    return (place + 1,) if fnmatchcase(word, pattern) else ()


def _naming(rule: Sequence[str], place: int, word: Word) -> tuple[int, ...]:
    """For certain, options included."""
    if place == len(rule):
        return ()
    if rule[place] in _STARS:
        return (place,)
    return (place + 1,) if isinstance(word, str) and fnmatchcase(word, rule[place]) else ()


def _maybe_naming(rule: Sequence[str], place: int, word: Word) -> Iterable[int]:
    """An unknown word may be no word, or several."""
    return range(place, len(rule) + 1) if isinstance(word, Some) else _naming(rule, place, word)


class _Denied:
    """A deny rule."""

    def __init__(self, words: Sequence[str]) -> None:
        self.text = " ".join(words)
        self._words = (*words, "**")
        self._mention = _mention(words)

    def named_in(self, script: Script) -> str | None:
        """What of the script is denied; None where nothing is, for all that can be known."""
        for part in script.parts:
            if any(_matches(self._words, form, _naming) for form in _forms(part)):
                return f"runs {part.text!r}"
        if script.doubt is not None or any(part.doubt is not None or runs_others(part) for part in script.parts):
            found = self._mention.search(re.sub(r"\\\n|['\"\\]", "", script.text))
            return None if found is None else f"names {found[0]!r}"
        return None

    def may_be(self, part: Part) -> bool:
        """Whether a part might turn out to be what the rule says."""
        return any(_matches(self._words, form, _maybe_naming) for form in _forms(part))


def _forms(part: Part) -> list[tuple[Word, ...]]:
    """A command as deny rules see it: as it is, without assignments, by its name without the path; a file by its real path."""
    words = part.words
    while len(words) > 1 and isinstance(words[0], str) and re.match(r"\w+=", words[0]):
        words = words[1:]
    forms = [part.words, words]
    match words:
        case (">" | "<" as operator, str() as file):
            forms.append((operator, normpath(file).replace("//", "/")))
        case (str() as name, *arguments):
            forms.append((name.rpartition("/")[2], *arguments))
        case _:
            pass
    return forms


def _mention(words: Sequence[str]) -> re.Pattern[str]:
    """Finds a rule's words in a text, one behind the other."""
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
