"""Commands in modules that are expensive to import or need an extra; they are loaded when called."""

from __future__ import annotations

from importlib import import_module

import click

from agentflow.terminal.cli.failures import CommandError


class LazyCommand(click.Command):
    """A command in a module that is imported only when the command is called.

    Args:
        name: The command's name.
        module: The module that defines it under that name.
        short_help: The description in the list of commands.
        needs: The extra that provides the module's dependencies, if any.
    """

    def __init__(self, name: str, module: str, short_help: str, needs: str | None = None) -> None:
        super().__init__(name, short_help=short_help)
        self._module = module
        self._needs = needs

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: object
    ) -> click.Context:
        """Load the command and let it parse its arguments."""
        try:
            module = import_module(self._module)
        except ImportError as error:
            if self._needs is None or (error.name or "").startswith("agentflow"):
                raise
            missing = f"`agentflow {self.name}` needs {error.name}, which is not installed: "
            cure = f"pip install 'agentflow-hooks[{self._needs}]'."
            raise CommandError(f"{missing}{cure}" if error.name else f"{error}.") from error  # ours have no name
        command: click.Command = getattr(module, str(self.name))
        return command.make_context(info_name, args, parent, **extra)
