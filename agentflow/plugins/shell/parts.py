"""Split a shell script, in a subset of the grammar, into the commands it runs and the files it opens.

Rules:

1. The supported syntax is a positive list: plain words, quotes, `$x` and `${x}` as whole words, assignments of known words,
   `|`, `&&`, `||`, `;`, new lines, and redirections to a named file. bash and dash interpret these alike. A script
   with anything else cannot be checked.
2. tree-sitter's bash grammar finds the tokens. Each must have a form that a shell cannot interpret in another way, with only
   blanks and known operators between them, so that no command is overlooked after a misparse.
3. A command that runs another one (`timeout 5 make`) is checked as that command, if only plain arguments precede it.
4. A word with an expansion may become anything: an option, several words, or none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final, Literal, TypeAlias

try:
    from tree_sitter import Language, Node, Parser
    from tree_sitter_bash import language
except ImportError as error:
    raise ImportError('Shell commands are parsed by tree-sitter: pip install "agentflow-hooks[shell]"') from error

Shell: TypeAlias = Literal["bash", "sh"]


@dataclass(frozen=True, slots=True)
class UnknownWords:
    """The source of an expansion. It becomes one word, several or none when the script runs."""

    text: str


Word: TypeAlias = str | UnknownWords


@dataclass(frozen=True, slots=True)
class Part:
    """One action of a script.

    Attributes:
        words: The command's words, assignments first; `(">", "file")` for a redirection.
        text: The source of the action.
        doubt: The reason why the action cannot be checked; None if it can.
    """

    words: tuple[Word, ...]
    text: str
    doubt: str | None = None


@dataclass(frozen=True, slots=True)
class ParsedScript:
    """The analysis of a script.

    Attributes:
        text: The script.
        parts: The script's actions, in order; empty if the script cannot be checked.
        doubt: The reason why the script cannot be checked; None if its parts can.
    """

    text: str
    parts: tuple[Part, ...] = ()
    doubt: str | None = None


MAX_SCRIPT_LENGTH: Final = 8_000
"""The longest script to check, in characters: tree-sitter's time for invalid scripts grows faster than their length."""
# `~` only inside a word: at its beginning, the shell would expand it.
_BARE = r"[A-Za-z0-9_%+,./:=@^-]|(?<=[A-Za-z0-9])~"
_SINGLE = r"'[^']*'"
_DOUBLE = r'"(?:[^"$`\\]|\\.)*"'
_WORD_PART = re.compile(rf"(?:{_BARE})+|{_SINGLE}|{_DOUBLE}")
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
# One repetition of alternatives that begin differently: a nested one would take exponential time for other words.
_PLAIN_WORD = re.compile(rf"(?:{_BARE}|{_SINGLE}|{_DOUBLE})+")
_EXPANSION = re.compile(rf"\$(?:{_NAME}|\{{{_NAME}\}})")
_QUOTED_EXPANSION = re.compile(rf'"{_EXPANSION.pattern}"')
_ASSIGNMENT = re.compile(rf"{_NAME}=")
_APPENDED = re.compile(rf"{_NAME}\+=")

_WORDS: Final = frozenset(
    ("word", "number", "concatenation", "string", "raw_string", "simple_expansion", "expansion", "variable_assignment")
)
"""Nodes that are one word; their content is checked by patterns."""
_SEPARATORS: Final = frozenset(("|", "||", "&&", ";"))
_REDIRECTIONS: Final[dict[Shell, frozenset[str]]] = {
    "sh": frozenset(("<", ">", ">>", ">&")),
    "bash": frozenset(("<", ">", ">>", ">&", "&>", "&>>")),  # dash reads `ls &> x` as `ls & > x`
}

_WRAPPERS: Final = frozenset(
    ("builtin", "command", "doas", "env", "exec", "nice", "nohup", "sudo", "time", "timeout", "xargs")
)
"""Commands that run the command after them."""
_NEED_OWN_RULE: Final = frozenset(("doas", "sudo"))
"""Wrappers that need a rule for themselves, in addition to a rule for the command."""
_RUN_OTHERS: Final = frozenset(
    """
    . ash awk bash busybox chroot dash eval find flock ionice ksh node parallel perl php python python3 ruby script setsid sh
    source ssh stdbuf strace su taskset trap unshare watch zsh
    """.split()  # noqa: SIM905 - reads better than quotes
)
"""Commands that may run their arguments: deny rules look into these."""
_CHANGES_THE_SHELL: Final = frozenset(
    """
    . alias bind compgen complete compopt coproc declare enable eval export fc getopts hash history let local mapfile read
    readarray readonly set shopt source trap typeset unalias unset
    """.split()  # noqa: SIM905 - as above
)
"""Builtins that can change later commands: they assign variables, run a text as a script, or redefine names."""
_HARMLESS: Final = frozenset(
    """
    : [ bg break caller cd chdir continue dirs disown echo exit false fg help jobs kill logout popd printf pushd pwd return
    shift suspend test times true type ulimit umask wait
    """.split()  # noqa: SIM905 - as above
)
"""All other builtins of bash and dash: treated like any command, with exceptions in `_doubt`."""
BUILTINS: Final = _CHANGES_THE_SHELL | _HARMLESS | {"builtin", "command", "exec"}
"""All known builtins of bash and dash."""
_TAKES_VARIABLES: Final = frozenset(("[", "printf", "test", "wait"))
"""Builtins that take names of variables. In bash, `test -v 'a[$(rm x)]'` runs the command inside."""
_COUNTS: Final = re.compile(r"%[-#0 +'I]*[\d*]*(?:\.[\d*]*)?[hlLjztq]*n")
"""The conversion of bash's printf that assigns the number of characters written."""
_FIND_RUNS: Final = frozenset(("-exec", "-execdir", "-ok", "-okdir"))


@cache
def _parser() -> Parser:
    return Parser(Language(language()))


def read_script(script: str, shell: Shell = "bash") -> ParsedScript:
    """Split a script into parts.

    Args:
        script: The text for the shell.
        shell: The shell that will run it; `"sh"` is any POSIX shell, dash included.

    Example:
        >>> [part.text for part in read_script("LANG=C git log 'a b' | head -1 > out").parts]
        ["LANG=C git log 'a b'", 'head -1', '> out']
        >>> read_script("git log $(rm x)").doubt
        "'$(rm x)': a command substitution cannot be checked"
    """
    if not script.strip():
        return ParsedScript(script, doubt="it is empty")
    if len(script) > MAX_SCRIPT_LENGTH:
        return ParsedScript(
            script, doubt=f"it has {len(script)} characters; at most {MAX_SCRIPT_LENGTH} can be checked"
        )
    if not all(letter.isprintable() or letter in "\t\n" for letter in script):
        return ParsedScript(script, doubt="it contains control characters or other invisible characters")
    try:
        source = script.encode()
        root = _parser().parse(source).root_node
    except (ValueError, UnicodeEncodeError) as error:
        return ParsedScript(script, doubt=f"it cannot be parsed ({type(error).__name__})")
    if root.has_error:
        return ParsedScript(script, doubt=f"{script!r}: it cannot be parsed")
    try:
        return ParsedScript(script, tuple(_parts(list(_tokens(root, source, shell)))))
    except _DoubtError as doubt:
        return ParsedScript(script, doubt=str(doubt))


class _DoubtError(Exception):
    """A part of the script is not understood with certainty."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(f"{text!r}: {reason}")


# ---- from the script to its tokens


@dataclass(frozen=True, slots=True)
class _Token:
    text: str
    kind: Literal["word", "redirection", "separator"]


def _tokens(root: Node, source: bytes, shell: Shell) -> Iterator[_Token]:
    """Yield words and operators in order, each checked by itself and with the preceding token."""
    end, last = 0, ""
    for node in _leaves(root):
        text, gap = _text(node), source[end : node.start_byte].decode()
        if gap.strip(" \t\n"):
            raise _DoubtError(gap.strip(), "it cannot be checked")
        if "\n" in gap:
            if last == "redirection":
                raise _DoubtError(text, "it is on another line than the redirection")
            yield _Token("\n", "separator")
        touches = not gap and last != ""
        if node.type in _WORDS:
            if not (_PLAIN_WORD.fullmatch(text) or _EXPANSION.fullmatch(text) or _QUOTED_EXPANSION.fullmatch(text)):
                raise _DoubtError(text, "a word can be checked only if it is plain, quoted, or a single variable")
            if touches and last == "word":
                raise _DoubtError(text, "the beginning of the word is ambiguous")
            last = "word"
            yield _Token(text, "word")
        # Only one digit, because dash reads several digits as a word.
        elif node.type == "file_descriptor" and re.fullmatch("[0-9]", text) and not (touches and last == "word"):
            last = "descriptor"
        elif node.type in _REDIRECTIONS[shell]:
            if (touches and last == "word") or (gap and last == "descriptor"):
                raise _DoubtError(text, "a redirection needs a blank before it, and none after its number")
            last = "redirection"
            yield _Token(text, "redirection")
        elif node.type in _SEPARATORS:
            last = "separator"
            yield _Token(text, "separator")
        else:
            raise _DoubtError(*_unsupported(node))
        end = node.end_byte
    if source[end:].decode().strip(" \t\n"):
        raise _DoubtError(source[end:].decode().strip(), "it cannot be checked")


def _leaves(root: Node) -> Iterator[Node]:
    stack = [root]
    while stack:
        node = stack.pop()
        if node.type in _WORDS or not node.children:
            yield node
        else:
            stack.extend(reversed(node.children))


def _unsupported(node: Node) -> tuple[str, str]:
    whole = node if node.is_named or node.parent is None or node.parent.parent is None else node.parent
    if not whole.is_named or whole.type in ("list", "program", "file_redirect"):
        return _text(node), "it cannot be checked"
    name = whole.type.replace("_", " ")
    return _text(whole), f"{'an' if name[0] in 'aeiou' else 'a'} {name} cannot be checked"


def _text(node: Node) -> str:
    return (node.text or b"").decode()


# ---- from tokens to commands


def _parts(tokens: Sequence[_Token]) -> Iterator[Part]:
    """Yield commands and redirections; there is at most one command between two separators."""
    words: list[str] = []
    files: list[Part] = []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        position += 1
        match token.kind:
            case "word":
                words.append(token.text)
            case "separator":
                yield from _command(words)
                yield from files
                words, files = [], []
            case "redirection":
                if position == len(tokens) or tokens[position].kind != "word":
                    raise _DoubtError(token.text, "no file follows it")
                files.extend(_redirection(token.text, tokens[position].text))
                position += 1
    yield from _command(words)
    yield from files


def _redirection(operator: str, written: str) -> Iterator[Part]:
    target, text = _value(written), f"{operator} {written}"
    if operator == ">&":
        if not re.fullmatch("[0-9]", written):
            raise _DoubtError(text, "it cannot be checked")
    elif isinstance(target, str) and re.match("/dev/(?:tcp|udp)/", target):
        raise _DoubtError(text, "bash opens a network connection for it")
    elif target != "/dev/null":
        yield Part(("<" if operator == "<" else ">", target), text)


def _command(written: Sequence[str]) -> Iterator[Part]:
    if not written:
        return
    count = next((i for i, text in enumerate(written) if not _ASSIGNMENT.match(text)), len(written))
    if count < len(written) and _APPENDED.match(written[count]):
        raise _DoubtError(written[count], "shells interpret it differently")
    words = tuple(_value(text) for text in written)
    if count == len(written):
        yield from (Part((word,), text) for word, text in zip(words, written, strict=True))
    else:
        yield from _run(words[:count], words[count:], " ".join(written))


def _value(written: str) -> Word:
    """Return the value of a word, without its quotes."""
    if _EXPANSION.fullmatch(written) or _QUOTED_EXPANSION.fullmatch(written):
        return UnknownWords(written)
    values: list[str] = []
    for match in _WORD_PART.finditer(written):
        text = match[0]
        if text[0] == '"':
            values.append(re.sub(r'\\([$`"\\])', r"\1", text[1:-1]))
        else:
            values.append(text[1:-1] if text[0] == "'" else text)
    return "".join(values)


def _run(assignments: tuple[Word, ...], words: tuple[Word, ...], text: str) -> Iterator[Part]:
    """Yield a command, and the command that it runs."""
    while True:
        everything, name, arguments = (*assignments, *words), words[0], words[1:]
        if isinstance(name, UnknownWords):
            yield Part(everything, text, "the command's name is not known before it runs")
        elif "/" in name and name.rpartition("/")[2] in _WRAPPERS:
            yield Part(everything, text, "a wrapper with a path cannot be checked")
        # `command -v` only prints what a name means.
        elif name in _WRAPPERS and arguments and not (name == "command" and arguments[0] in ("-v", "-V")):
            inner = _wrapped(name, arguments)
            if inner is not None:
                if name in _NEED_OWN_RULE:
                    yield Part(everything, text)
                words = inner
                continue
            yield Part(everything, text, f"{name} with options cannot be checked")
        else:
            yield Part(everything, text, _doubt(name, arguments))
        return


def _wrapped(name: str, arguments: tuple[Word, ...]) -> tuple[Word, ...] | None:
    """Return the command that a wrapper runs."""
    if name == "timeout":
        if not isinstance(arguments[0], str) or not re.fullmatch(r"\d+(?:\.\d+)?[smhd]?", arguments[0]):
            return None
        arguments = arguments[1:]
    if not arguments or isinstance(arguments[0], UnknownWords) or re.match(r"-|\w+=", arguments[0]):
        return None
    # xargs appends words that it reads from its input.
    return (*arguments, UnknownWords("...")) if name == "xargs" else arguments


def _printf_assigns(arguments: tuple[Word, ...]) -> bool:
    """Return whether printf may assign a variable: by an option, or by a conversion of its format."""
    if not arguments or isinstance(arguments[0], UnknownWords) or arguments[0].startswith("-"):
        return True
    return _COUNTS.search(arguments[0].replace("%%", "")) is not None


def _doubt(name: str, arguments: tuple[Word, ...]) -> str | None:
    if name in _CHANGES_THE_SHELL:
        return f"the effect of {name} on the shell cannot be checked"
    known = [word for word in arguments if isinstance(word, str)]
    if name == "printf" and _printf_assigns(arguments):
        return "printf may assign a variable"
    if name == "wait" and any(word.startswith("-") for word in known):
        return "wait may assign a variable"
    if name == "jobs" and arguments:
        return "jobs may run a command"
    if name in _TAKES_VARIABLES and (len(known) < len(arguments) or any(re.search(r"[\[$`]", word) for word in known)):
        return f"{name} may run a command in a variable's name"
    if name == "find" and (len(known) < len(arguments) or not _FIND_RUNS.isdisjoint(known)):
        return "commands run by find cannot be checked"
    return None


def runs_others(part: Part) -> bool:
    """Return whether a command may run its arguments."""
    names = (word.rpartition("/")[2] for word in part.words if isinstance(word, str) and not _ASSIGNMENT.match(word))
    return next(names, "") in _RUN_OTHERS
