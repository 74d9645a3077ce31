"""Rules as table rows: the requests that a vendor refuses, the error texts, and how certain these are.

Rules:

1. A check reads only the fields of the request that concern its rule. It returns the values for the placeholders of the
   row's text, or None. The first violated rule in the table determines the refusal, so rules about the structure of a
   request precede rules about the order of its messages.
2. `mark` is the certainty of the text: `D` documented by the vendor, `I` seen in a public issue or pull request, `B`
   believed (the rule is known, the wording is not verified).
3. If a rule applies to some dialects only, its row names their family, or its check reads `subject.dialect`.

The rows are data: `rules_*.tsv`, one line each, with the fields of `WireRule` as columns; `check` is the name of a function
in the corresponding `checks_*` module.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.resources import files
from types import ModuleType
from typing import Literal, TypeAlias, cast

from agentflow.testing.wire.jsonish import JsonObject, JsonValue, as_list, as_object, as_text, dump, objects
from agentflow.testing.wire.request import WireName
from agentflow.testing.wire.signing import Signer

PlaceholderValue: TypeAlias = str | int
Mark: TypeAlias = Literal["D", "I", "B"]
Family: TypeAlias = Literal["vendor", "mistral", "deepseek", "template"]
MEGABYTE = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The model generation, or the compatible vendor, that the server simulates.

    The plain `Dialect()` refuses a prefill and late `system` messages, but accepts sampling parameters, thinking budgets,
    `max_tokens` and the role `system`, which newer models refuse: simulate those with `claude_4_8()`, `reasoning()` and `o1()`.

    Args:
        name: The name in messages.
        family: `"vendor"` is the wire's owner. The others use OpenAI's wire with rules of their own: `"mistral"`,
            `"deepseek"`, and `"template"` (a local server that renders a strict chat template).
        prefill: Anthropic up to 4.5: an assistant message may end the request.
        alternate: Roles must alternate (Anthropic's older endpoint).
        late_system: Anthropic from 4.8: a `system` message may follow a user turn.
        system_role: OpenAI: the role `system` is accepted.
        binds: Anthropic from 5.1: thinking is bound to the system prompt, tools and messages before it.
        manual_thinking: `thinking: enabled` with a budget is accepted (Anthropic below 4.7).
        sampling: `temperature` is accepted.
        max_tokens: OpenAI: the parameter `max_tokens` is accepted.
        max_output: The limit of `max_tokens`; None means no limit.
        window: The context window in tokens, estimated at four characters each; None means no limit.
        max_body: The maximum size of the body in bytes.
        max_description: OpenAI: the maximum length of a tool's description.

    Example:
        >>> Dialect.claude_4_5().prefill
        True
    """

    name: str = "strict"
    family: Family = "vendor"
    prefill: bool = False
    alternate: bool = False
    late_system: bool = False
    system_role: bool = True
    binds: bool = False
    manual_thinking: bool = True
    sampling: bool = True
    max_tokens: bool = True
    max_output: int | None = None
    window: int | None = None
    max_body: int = 32 * MEGABYTE
    max_description: int | None = None

    @classmethod
    def claude_4_5(cls) -> "Dialect":
        """Simulate Claude 4.5 and older: a trailing assistant message is a prefill; no `system` message."""
        return cls(name="claude-4.5", prefill=True, max_output=64_000)

    @classmethod
    def claude_4_8(cls) -> "Dialect":
        """Simulate Claude 4.8 and later: no prefill, sampling parameters or thinking budget; late `system` messages allowed."""
        return cls(name="claude-4.8", late_system=True, manual_thinking=False, sampling=False)

    @classmethod
    def claude_5_5(cls) -> "Dialect":
        """Simulate Claude 5.5, and Fable and Mythos from 5.1: like 4.8, but thinking is bound to the content before it."""
        return cls(name="claude-5.5", late_system=True, manual_thinking=False, sampling=False, binds=True)

    @classmethod
    def reasoning(cls) -> "Dialect":
        """Simulate OpenAI's reasoning models: `max_completion_tokens` instead of `max_tokens`, no temperature."""
        return cls(name="reasoning", max_tokens=False, sampling=False)

    @classmethod
    def o1(cls) -> "Dialect":
        """Simulate OpenAI's first reasoning models, which also refuse `system`."""
        return cls(name="o1", max_tokens=False, sampling=False, system_role=False)

    @classmethod
    def mistral(cls) -> "Dialect":
        """Simulate Mistral on the OpenAI wire."""
        return cls(name="mistral", family="mistral")

    @classmethod
    def deepseek(cls) -> "Dialect":
        """Simulate DeepSeek with thinking, on the OpenAI wire."""
        return cls(name="deepseek", family="deepseek")

    @classmethod
    def template(cls) -> "Dialect":
        """Simulate a local server with a strict chat template, on the OpenAI wire."""
        return cls(name="template", family="template")


class Violation:
    """A violated rule: the values of the placeholders in the rule's text.

    Example:
        >>> Violation(n=3, ids="a, b").blanks["n"]
        3
    """

    __slots__ = ("blanks",)

    def __init__(self, **blanks: PlaceholderValue) -> None:
        self.blanks: Mapping[str, PlaceholderValue] = blanks


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleRefusal:
    """The answer to a refused request: status, message and the fields of the vendor's error body."""

    rule: str
    status: int
    message: str
    type: str
    param: str | None = None
    code: str | None = None


@dataclass(kw_only=True, eq=False)
class Subject:
    """A request being checked, with accessors shared by the checks.

    `size` is the size of the body in bytes. `without_thinking` has the ids of calls that this server sent without thinking:
    clients cannot return thinking for them.
    """

    wire: WireName
    body: JsonObject
    headers: Mapping[str, str]
    dialect: Dialect = field(default_factory=Dialect)
    signer: Signer = field(default_factory=Signer)
    size: int = 0
    valid_json: bool = True
    without_thinking: frozenset[str] = frozenset()

    @cached_property
    def messages(self) -> list[JsonObject]:
        """The messages; a value that is not an object counts as an empty one."""
        return objects(self.body.get("messages"))

    @cached_property
    def tools(self) -> list[JsonObject]:
        """The tool definitions; a value that is not an object counts as an empty one."""
        return objects(self.body.get("tools"))

    @cached_property
    def tokens(self) -> int:
        """The estimated size of the request at four characters per token, independent of spaces in its JSON."""
        return len(dump(self.body)) // 4

    def role(self, index: int) -> str:
        """Return the role of the message at a position; empty outside the list."""
        return as_text(self.messages[index].get("role")) if 0 <= index < len(self.messages) else ""

    def with_role(self, *roles: str) -> Iterator[tuple[int, JsonObject]]:
        """Yield positions and messages of these roles."""
        return ((n, message) for n, message in enumerate(self.messages) if message.get("role") in roles)

    def blocks(self, *types: str) -> Iterator[tuple[int, int, JsonObject]]:
        """Yield positions and content blocks of these types in all messages; without types, all blocks."""
        for n, message in enumerate(self.messages):
            for m, block in enumerate(objects(message.get("content"))):
                if not types or block.get("type") in types:
                    yield n, m, block

    def calls(self) -> Iterator[tuple[int, int, JsonObject]]:
        """Yield positions and members of `tool_calls` in all assistant messages (OpenAI)."""
        for n, message in self.with_role("assistant"):
            for m, call in enumerate(objects(message.get("tool_calls"))):
                yield n, m, call

    def functions(self) -> Iterator[tuple[int, JsonObject]]:
        """Yield positions and functions of the tool definitions (OpenAI)."""
        for n, tool in enumerate(self.tools):
            if "function" in tool:
                yield n, as_object(tool.get("function"))


@dataclass(frozen=True, slots=True, kw_only=True)
class WireRule:
    """A row: a check, and the vendor's answer if a request violates it.

    Attributes:
        id: A stable name that starts with the wire.
        wire: The wire of the rule.
        about: The requirement for a legal request.
        check: Returns the values for the placeholders of `text` if a request violates the rule, otherwise None.
        text: The error text, with placeholders in braces.
        source: The origin of the text.
        mark: The certainty (`D`, `I`, `B`).
        family: The dialect family of the rule; None means every family.
    """

    id: str
    wire: WireName
    about: str
    check: Callable[[Subject], Violation | None]
    text: str
    source: str
    mark: Mark
    status: int = 400
    type: str = "invalid_request_error"
    param: str | None = None
    code: str | None = None
    family: Family | None = None

    def refuse(self, subject: Subject) -> RuleRefusal | None:
        """Return the refusal of a request that violates this rule, or None."""
        if self.family is not None and self.family != subject.dialect.family:
            return None
        violation = self.check(subject)
        if violation is None:
            return None
        return RuleRefusal(
            rule=self.id,
            status=self.status,
            message=self.text.format(**violation.blanks),
            type=self.type,
            param=None if self.param is None else self.param.format(**violation.blanks),
            code=self.code,
        )


def read_rules(table: str, wire: WireName, *checks: ModuleType) -> tuple[WireRule, ...]:
    """Read a table of rules.

    Args:
        table: The file, in this folder.
        wire: The wire of the rules.
        checks: The modules that define the checks.
    """
    known: dict[str, Callable[[Subject], Violation | None]] = {}
    for module in reversed(checks):  # if two modules define a name, the first one takes precedence
        known |= vars(module)
    text = files("agentflow.testing.wire").joinpath(table).read_text(encoding="utf-8")
    head, *rows = [line.split("\t") for line in text.splitlines()]
    return tuple(_rule(dict(zip(head, row, strict=True)), wire, known) for row in rows)


def _rule(
    row: Mapping[str, str], wire: WireName, known: Mapping[str, Callable[[Subject], Violation | None]]
) -> WireRule:
    return WireRule(
        id=row["rule"],
        wire=wire,
        about=row["about"],
        check=known[row["check"]],
        text=row["text"],
        source=row["source"],
        mark=cast("Mark", row["mark"]),
        status=int(row["status"]),
        type=row["type"],
        param=row["param"] or None,
        code=row["code"] or None,
        family=cast("Family", row["family"]) if row["family"] else None,
    )


def first_refusal(rules: Sequence[WireRule], subject: Subject) -> RuleRefusal | None:
    """Return the refusal by the first rule, in table order, that the request violates."""
    return next((refusal for rule in rules if (refusal := rule.refuse(subject)) is not None), None)


def repeated(items: Sequence[str]) -> str | None:
    """Return the first item that occurs twice."""
    known: set[str] = set()
    for item in items:
        if item in known:
            return item
        known.add(item)
    return None


def texts(value: JsonValue) -> Iterator[str]:
    """Yield the texts of a content value: the string itself, or the texts of its text blocks."""
    if isinstance(value, str):
        yield value
    for block in as_list(value):
        inner = as_object(block)
        if inner.get("type") == "text":
            yield as_text(inner.get("text"))


def strict_objects(value: JsonValue, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], JsonObject]]:
    """Yield the schemas of objects in a JSON schema, each with its path. Strict mode has rules for them."""
    schema = as_object(value)
    kind = schema.get("type")
    if "properties" in schema or kind == "object" or "object" in as_list(kind):
        yield path, schema
    for key, inner in as_object(schema.get("properties")).items():
        yield from strict_objects(inner, (*path, "properties", key))
    if "items" in schema:
        yield from strict_objects(schema["items"], (*path, "items"))
    for index, inner in enumerate(as_list(schema.get("anyOf"))):
        yield from strict_objects(inner, (*path, "anyOf", str(index)))
    for key, inner in as_object(schema.get("$defs")).items():
        yield from strict_objects(inner, (*path, "$defs", key))


def describe_rules(rules: Sequence[WireRule]) -> str:
    """Format the rows as a Markdown table.

    Example:
        >>> print(describe_rules(())[:8])
        | Rule |
    """
    lines = ["| Rule | A legal request … | Status | Text of the refusal | Source | Mark |", "|---|---|---|---|---|---|"]
    for rule in rules:
        about = rule.about if rule.family is None else f"{rule.about} ({rule.family})"
        quote = f"`` {rule.text} ``" if "`" in rule.text else f"`{rule.text}`"
        shown = quote.replace("{{", "{").replace("}}", "}").replace("|", "\\|")
        lines.append(f"| `{rule.id}` | {about} | {rule.status} | {shown} | {rule.source} | {rule.mark} |")
    return "\n".join(lines)
