"""A shell script taken apart: every command that it may run, wherever it hides.

Rules:

1. tree-sitter's grammar of bash reads the script; nothing is found by searching text.
2. Chains, pipes, substitutions, subshells, functions, loops, here-documents and redirections give one part each. Commands that
   run others (`bash -c`, `eval`, `xargs`, `env`, `find -exec` ...) give those too.
3. What is not understood for certain is a part with a `doubt`, and never more.
4. A word is certain or not: one with an expansion or a pattern for file names may become anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TypeAlias

try:
    from tree_sitter import Language, Node, Parser
    from tree_sitter_bash import language
except ImportError as error:
    raise ImportError('Shell commands are parsed by tree-sitter: pip install "agentflow[shell]"') from error

__all__ = ["Part", "Some", "Word", "parts_of"]


@dataclass(frozen=True, slots=True)
class Some:
    """A word that is not known before the script runs.

    Attributes:
        text: How it is written.
        one: It is one word, whatever it becomes; else none, or several.
    """

    text: str
    one: bool = False


Word: TypeAlias = str | Some
MORE = Some("...")


@dataclass(frozen=True, slots=True)
class Part:
    """One thing that a script does.

    Attributes:
        words: The command's words, assignments first; `(">", "file")` for a redirection.
        text: How it is written.
        doubt: Why it cannot be judged; None where it can.
    """

    words: tuple[Word, ...]
    text: str
    doubt: str | None = None


_STRUCTURE = frozenset(
    """
    program list pipeline subshell compound_statement function_definition if_statement elif_clause else_clause
    for_statement while_statement do_group case_statement case_item negated_command redirected_statement
    command_substitution process_substitution comment heredoc_redirect heredoc_start heredoc_body heredoc_content
    heredoc_end herestring_redirect command command_name file_redirect file_descriptor variable_assignment
    variable_name special_variable_name declaration_command unset_command array word string string_content raw_string
    ansi_c_string number concatenation simple_expansion expansion test_command unary_expression binary_expression
    parenthesized_expression negation_expression test_operator regex extglob_pattern arithmetic_expansion
    """.split()  # noqa: SIM905 - reads better than a hundred quotes
)
"""The kinds of nodes that are understood."""
_HARMLESS_NAME = re.compile(r"[a-z_][a-z0-9_]*\Z")
_PLAIN_EXPANSION = re.compile(r"\$\{#?\w+(?:(?::?[-=+?])|[#%:/^,]).*\}\Z|\$\{#?\w+\}\Z", re.DOTALL)
_ARITHMETIC_TEST = re.compile(r"-(?:eq|ne|lt|le|gt|ge|v)\Z")
_DEPTH = 8
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh", "ash"})

_RUNNERS: dict[str, tuple[str, str, int]] = {
    # name: options that take a value, options that do not, words before the command
    "builtin": ("", "", 0),
    "command": ("", "p", 0),
    "coproc": ("", "", 0),
    "doas": ("uC", "n", 0),
    "env": ("uC", "i0v", 0),
    "exec": ("a", "cl", 0),
    "ionice": ("cn", "t", 0),
    "nice": ("n", "", 0),
    "nohup": ("", "", 0),
    "setsid": ("", "cfw", 0),
    "stdbuf": ("ioe", "", 0),
    "sudo": ("ugCDhpRrtTU", "AbEHiknPSs", 0),
    "time": ("", "p", 0),
    "timeout": ("sk", "v", 1),
    "xargs": ("IinPLdsE", "0prtx", 0),
}
_SEE_THROUGH = frozenset(_RUNNERS) - {"sudo", "doas"}
"""Runners that are judged by what they run alone."""


@cache
def _parser() -> Parser:
    return Parser(Language(language()))


def parts_of(script: str, depth: int = 0) -> tuple[Part, ...]:
    """Take a script apart.

    Args:
        script: The text for the shell.
        depth: How many shells it is inside of.

    Example:
        >>> [part.text for part in parts_of("git log | head && rm -rf $(cat list)")]
        ['git log', 'head', 'rm -rf $(cat list)', 'cat list']
    """
    if depth > _DEPTH:
        return (Part((), script, "it is too deep inside other shells"),)
    if not script.strip():
        return (Part((), script, "it is empty"),)
    if re.search(r"[\x00-\x08\x0b-\x1f\x7f\u2028\u2029]", script):
        return (Part((), script, "it holds control characters"),)
    try:
        root = _parser().parse(script.encode()).root_node
    except (ValueError, UnicodeEncodeError) as error:
        return (Part((), script, f"it cannot be parsed ({type(error).__name__})"),)
    if root.has_error:
        return (Part((), script, "it cannot be parsed"),)
    return tuple(_walk(root, depth))


def _walk(node: Node, depth: int) -> Iterator[Part]:
    kind = node.type
    if node.is_named and kind not in _STRUCTURE:
        yield Part((), _text(node), f"{kind.replace('_', ' ')} is not understood")
    elif kind == "command":
        yield from _command(node, depth)
    elif kind == "file_redirect":
        yield from _redirect(node)
    elif kind in ("declaration_command", "unset_command"):
        yield Part(tuple(_word(child) for child in node.children), _text(node))
    elif kind == "variable_assignment" and node.parent is not None and node.parent.type not in _ASSIGNING:
        yield from _assignment(node)
    elif kind == "for_statement":
        variable = node.child_by_field_name("variable")
        if variable is not None and not _HARMLESS_NAME.match(_text(variable)):
            yield Part((f"{_text(variable)}=",), _text(node), None)
    else:
        doubt = _doubt(node)
        if doubt is not None:
            yield Part((), _text(node), doubt)
    for child in node.children:
        yield from _walk(child, depth)


_ASSIGNING = ("command", "declaration_command")


def _doubt(node: Node) -> str | None:
    """Why a node that is no command cannot be judged."""
    text = _text(node)
    match node.type:
        case "heredoc_redirect":
            if any(node.field_name_for_child(index) == "argument" for index in range(node.child_count)):
                return "words stand behind a here-document's name"
        case "expansion":
            # ${x@P}, ${!x} and ${x[...]} evaluate what a variable holds.
            if not _PLAIN_EXPANSION.match(text) or "@" in text or "[" in text:
                return "the expansion may run what a variable holds"
        case "arithmetic_expansion":
            if re.search(r"[A-Za-z_$`]", text[3:-2]):
                return "arithmetic may run what a variable holds"
        case "test_operator":
            if _ARITHMETIC_TEST.match(text):
                return "an arithmetic test may run what a variable holds"
        case "function_definition":
            name = node.child_by_field_name("name")
            if name is None or not re.fullmatch(r"[\w-]+", _text(name)):
                return "the function's name is not understood"
        case _:
            pass
    return None


def _assignment(node: Node) -> Iterator[Part]:
    name = node.child_by_field_name("name")
    if name is None or name.type != "variable_name":
        yield Part((), _text(node), "the assignment is not understood")
    elif not _HARMLESS_NAME.match(_text(name)) or _text(name).endswith("_proxy"):
        yield Part((_word(node),), _text(node))


def _redirect(node: Node) -> Iterator[Part]:
    targets = node.children_by_field_name("destination")
    operator = next((child.type for child in node.children if not child.is_named), "")
    if len(targets) != 1:
        yield Part((), _text(node), "words stand behind the file of a redirection")
        return
    target = _word(targets[0])
    if operator in (">&", "<&", "&>") and isinstance(target, str) and re.fullmatch(r"\d+-?|-", target):
        return
    if target == "/dev/null":
        return
    yield Part(("<" if operator == "<" else ">", target), _text(node))


def _command(node: Node, depth: int) -> Iterator[Part]:
    words: list[Word] = []
    for child in node.children:
        if child.type in ("file_redirect", "herestring_redirect", "heredoc_redirect"):
            continue
        words.append(_word(child.children[0] if child.type == "command_name" else child))
    yield from _run(tuple(words), _text(node), depth)


def _run(words: tuple[Word, ...], text: str, depth: int) -> Iterator[Part]:
    """A command, and what it runs in its turn."""
    start = next((i for i, word in enumerate(words) if not _assigns(word)), len(words))
    prefix, (name, *arguments) = words[:start], (words[start:] or ("",))
    if isinstance(name, Some):
        yield Part(words, text, "the command's name is not known before it runs")
        return
    place, _, base = name.rpartition("/")
    if place not in ("", "/bin", "/usr/bin"):
        yield Part(words, text)  # somebody's own `env` may do anything
    if depth > _DEPTH:
        yield Part(words, text, "it is too deep inside other commands")
        return
    runs_text = base in _SHELLS or base in ("eval", "trap")
    if runs_text and prefix:
        yield Part((*prefix, name), text)
    if base in _SHELLS and any(isinstance(word, Some) or re.match(r"[-+]\w*c", word) for word in arguments):
        yield from _shell(arguments, text, depth)
    elif base == "eval":
        yield from _script(arguments, text, depth)
    elif base == "trap" and arguments:
        yield from _script(arguments[:1], text, depth)
    elif base in _RUNNERS and not (base == "command" and arguments[:1] in (["-v"], ["-V"])):
        if base not in _SEE_THROUGH:
            yield Part(words, text)
        yield from _inner(base, prefix, arguments, text, depth)
    else:
        yield Part(words, text)
        if base == "find":
            for inner in _find(arguments):
                yield from _run(inner, text, depth + 1)


def _assigns(word: Word) -> bool:
    return re.match(r"\w+(\[[^]]*\])?\+?=", word if isinstance(word, str) else word.text) is not None


def _shell(arguments: Sequence[Word], text: str, depth: int) -> Iterator[Part]:
    """`bash -c script`."""
    for index, word in enumerate(arguments):
        if isinstance(word, Some):
            break
        if re.match(r"-\w*c\w*\Z", word):
            script = next((w for w in arguments[index + 1 :] if isinstance(w, Some) or w[:1] not in "-+"), None)
            if script is not None and not isinstance(script, Some):
                yield from parts_of(script, depth + 1)
                return
            break
        if not re.match(r"[-+]\w", word) and word not in ("--login", "--norc", "--noprofile", "--posix"):
            break
        if re.search(r"[oO]", word) and not word.startswith("--"):
            break
    yield Part((), text, "what the shell is told to run is not known before")


def _script(words: Sequence[Word], text: str, depth: int) -> Iterator[Part]:
    """`eval words`."""
    known = [word for word in words if isinstance(word, str)]
    if len(known) != len(words) or not known:
        yield Part((), text, "what it evaluates is not known before")
    else:
        yield from parts_of(" ".join(known), depth + 1)


def _inner(base: str, prefix: tuple[Word, ...], arguments: Sequence[Word], text: str, depth: int) -> Iterator[Part]:
    """What `env`, `xargs` and their like run."""
    valued, flags, skip = _RUNNERS[base]
    rest = list(arguments)
    while rest:
        word = rest[0]
        if isinstance(word, Some):
            yield Part((), text, f"what {base} is told to run is not known before")
            return
        if word == "--":
            rest.pop(0)
            break
        if not word.startswith("-") or word == "-":
            break
        rest.pop(0)
        letters = word[1:]
        plain = letters.rstrip("0123456789") if base == "nice" else letters
        if not plain or all(letter in flags for letter in plain):
            continue
        if letters[0] not in valued:
            yield Part((), text, f"the option {word} of {base} is not known here")
            return
        if len(letters) == 1 and rest:
            rest.pop(0)
    rest = rest[skip:]
    assigned = [word for word in rest if _assigns(word)] if base in ("env", "sudo", "doas") else []
    while assigned and rest and _assigns(rest[0]):
        prefix = (*prefix, rest.pop(0))
    if not rest:
        yield Part((*prefix, "echo" if base == "xargs" else base), text)
        return
    yield from _run((*prefix, *rest, *((MORE,) if base == "xargs" else ())), text, depth + 1)


def _find(arguments: Sequence[Word]) -> Iterator[tuple[Word, ...]]:
    """The commands of `find ... -exec command ;`."""
    index = 0
    while index < len(arguments):
        if arguments[index] in ("-exec", "-execdir", "-ok", "-okdir"):
            end = index + 1
            while end < len(arguments) and arguments[end] not in (";", "+"):
                end += 1
            yield tuple(
                Some("{}") if w == "{}" or (isinstance(w, str) and "{}" in w) else w for w in arguments[index + 1 : end]
            )
            index = end
        index += 1


# ---- words


def _text(node: Node) -> str:
    return (node.text or b"").decode()


def _word(node: Node) -> Word:
    text = _text(node)
    value = _literal(node)
    if value is None:
        return Some(text, one=node.type in ("string", "ansi_c_string", "translated_string") and "@" not in text)
    return value


def _literal(node: Node) -> str | None:
    """What a word says; None where that is not known before the script runs."""
    text = _text(node)
    read: Callable[[str], str | None] | None = _LITERALS.get(node.type)
    if read is not None:
        return read(text)
    match node.type:
        case "string":
            inner = [child for child in node.children if child.is_named]
            if any(child.type != "string_content" for child in inner):
                return None
            return re.sub(r'\\([$`"\\\n])', lambda m: "" if m[1] == "\n" else m[1], text[1:-1])
        case "concatenation" | "variable_assignment":
            parts = [_literal(child) for child in node.children]
            if any(part is None for part in parts) or (node.type == "concatenation" and _braces(node)):
                return None
            return "".join(part for part in parts if part is not None)
        case _:
            return text if not node.is_named else None


def _braces(node: Node) -> bool:
    return any(child.type == "word" and re.search(r"[{}]", _text(child)) for child in node.children)


def _plain_word(text: str) -> str | None:
    if text.startswith("~") or re.search(r"(?<!\\)[*?\[\]{}]", text):
        return text if text in ("{}", "[", "]") else None
    if re.search(r"(?<!\\)[$`]", text):
        return None
    return re.sub(r"\\(.)", lambda m: "" if m[1] == "\n" else m[1], text, flags=re.DOTALL)


_LITERALS: dict[str, Callable[[str], str | None]] = {
    "word": _plain_word,
    "number": _plain_word,
    "variable_name": lambda text: text,
    "raw_string": lambda text: text[1:-1],
}
