"""The generated parts of the site, as hooks of mkdocs (`hooks:` in mkdocs.yml).

- A reference page for each public module, made from its `__all__`: a table of its names, and their docstrings. A name that
  several modules list has its entry in the first of them; the others link to it.
- The samples: a page's link to a sample leads to the file, and a cookbook page ends with the whole file.
- Public names in code style become links to their entries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

import griffe
from mkdocs.structure.files import File

from website.docstrings import Docstrings

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parents[1]

MODULES: Final = (
    "agentflow.agent",
    "agentflow.vocabulary.events",
    "agentflow.hooks",
    "agentflow.vocabulary.verdicts",
    "agentflow.loop.output",
    "agentflow.vocabulary.messages",
    "agentflow.tools",
    "agentflow.models",
    "agentflow.state",
    "agentflow.plugins",
    "agentflow.recording",
    "agentflow.agent.orchestration",
    "agentflow.mcp",
    "agentflow.serve",
    "agentflow.serve.a2a",
    "agentflow.serve.acp",
    "agentflow.serve.inspector",
    "agentflow.terminal",
    "agentflow.reactive",
    "agentflow.errors",
    "agentflow.testing",
    "agentflow.testing.evaluation",
    "agentflow.testing.wire",
    "agentflow.testing.faults",
    "agentflow.testing.real",
    "agentflow.vocabulary.specs",
    "agentflow.vocabulary.facts",
    "agentflow.durable.agent",
    "agentflow.durable.client",
    "agentflow.durable.worker",
    "agentflow.vocabulary",
    "agentflow",
)
"""The public modules. The root is last, so that its names are documented in their own modules."""


ONE_BASE: Final = {"agentflow.vocabulary.events", "agentflow.plugins", "agentflow.errors"}
"""Modules whose classes share a few bases: inherited members are documented with the bases only."""


def title_of(module: str) -> str:
    """Return the name of a module without `agentflow.`, which is also the name of its page without `.md`."""
    return module.removeprefix("agentflow.")


class Reference:
    """The public names of the package, read from its source."""

    def __init__(self) -> None:
        package = griffe.load(
            "agentflow", search_paths=[ROOT], resolve_aliases=True, extensions=griffe.Extensions(Docstrings())
        )
        assert isinstance(package, griffe.Module)
        self.modules = {name: package if name == "agentflow" else package[title_of(name)] for name in MODULES}
        self.entries: dict[str, str] = {}
        self.by_name: dict[str, str] = {}
        for module in MODULES:
            for name in self.names(module):
                # A module may have the name of the function in it, which then has the longer path.
                inside = self.modules[module][name].is_module
                entry = self.entries.setdefault(
                    self.found(module, name).path, f"{module}.{name}.{name}" if inside else f"{module}.{name}"
                )
                self.by_name.setdefault(name, entry)

    def names(self, module: str) -> list[str]:
        """Return the public names of a module, in the order of its `__all__`."""
        return [str(name) for name in self.modules[module].exports or ()]

    def found(self, module: str, name: str) -> griffe.Object:
        """Return the object that a name of a module refers to."""
        found = self.modules[module][name]
        found = found[name] if found.is_module else found
        return found.final_target if found.is_alias else found

    def entry(self, module: str, name: str) -> str:
        """Return the path of a name's entry, which is in the first module that lists the name."""
        return self.entries[self.found(module, name).path]

    def about(self, module: str, name: str) -> str:
        """Return the first paragraph of a name's docstring, for a cell of a table."""
        docstring = self.found(module, name).docstring
        return docstring.value.split("\n\n")[0].replace("\n", " ").replace("|", "\\|") if docstring else ""

    def page(self, module: str) -> str:
        """Return the reference page of a module, as Markdown."""
        return "\n".join(self._lines(module))

    def _lines(self, module: str) -> Iterator[str]:
        docstring = self.modules[module].docstring
        yield f"# {module}\n"
        yield _PAGE.sub(_linked_page, docstring.value if docstring else "") + "\n"
        yield "| Name | |\n|---|---|"
        for name in self.names(module):
            yield f"| [`{name}`][{self.entry(module, name)}] | {self.about(module, name)} |"
        entries = {name: self.entry(module, name) for name in self.names(module)}
        own = [entry for name, entry in entries.items() if entry in {f"{module}.{name}", f"{module}.{name}.{name}"}]
        if own:
            yield "\n## Entries\n"
        options = "    options:\n      inherited_members: false\n" if module in ONE_BASE else ""
        yield from (f"::: {entry}\n{options}" for entry in own)


def _linked_page(found: re.Match[str]) -> str:
    """Return a link to a page that a docstring names; its text alone if there is no such page."""
    return f"[{found[0]}](../{found[1]})" if (ROOT / "docs" / found[1]).exists() else found[0]


_PAGE: Final = re.compile(r"`docs/([\w/-]+\.md)`")
_CODE = re.compile(r"(<a [^>]*>.*?</a>|<pre.*?</pre>|<h\d.*?</h\d>)|<code>(@?)(\w+)(\(\))?</code>", re.DOTALL)
_COMMON: Final = {"on", "tool", "fire", "verify", "render", "shutdown", "threads", "Source", "Error"}
"""Names that are not linked, since pages use them in other meanings too: `on` is mostly a method."""

_reference: Reference | None = None


def reference() -> Reference:
    """Return the reference; it is read only once per build."""
    global _reference  # noqa: PLW0603
    if _reference is None:
        _reference = Reference()
    return _reference


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Add the generated pages to the section Reference."""
    sections: list[Any] = cast("Any", config).nav or []
    for section in sections:
        if "Reference" in section:
            section["Reference"] += [f"api/{title_of(module)}.md" for module in MODULES]
    return config


def on_pre_build(config: MkDocsConfig) -> None:
    """Discard the reference of the previous build."""
    global _reference  # noqa: PLW0603
    _reference = None


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the reference pages and the samples to the pages of `docs/`."""
    for module in MODULES:
        path = f"api/{title_of(module)}.md"
        files.append(File.generated(config, path, content=reference().page(module)))
    for sample in sorted((ROOT / "samples").rglob("*.py")):
        path = sample.relative_to(ROOT).as_posix()
        files.append(File.generated(config, path, abs_src_path=str(sample)))
    return files


_SAMPLE: Final = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+)(samples\b[^)]*)\)")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to samples to the site's copies; replace a link to a folder or another file by its text."""
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation", "toc"]  # its tables are the navigation
    samples = [sample for _, _, sample in _SAMPLE.findall(markdown) if sample.endswith(".py")]

    def linked(found: re.Match[str]) -> str:
        text, up, sample = found.groups()
        return f"[{text}]({up.removeprefix('../')}{sample})" if sample.endswith(".py") else text

    markdown = _SAMPLE.sub(linked, markdown)
    if page.file.src_uri.startswith("cookbook/") and samples:
        code = (ROOT / samples[0]).read_text("utf-8")
        markdown += f"\n## The whole file\n\n````python\n{code}````\n"
    return markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Link public names in running text to their entries."""
    if page.file.src_uri.startswith("api/"):
        return html
    known = reference()

    def linked(found: re.Match[str]) -> str:
        whole, at, name, call = found.groups()
        if whole or name not in known.by_name or name in _COMMON:
            return found[0]
        code = f"<code>{at}{name}{call or ''}</code>"
        return f'<autoref identifier="{known.by_name[name]}">{code}</autoref>'

    return _CODE.sub(linked, html)
