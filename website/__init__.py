"""The documentation site: the reference from docstrings (`build`, `docstrings`), generated tables, screenshots and pictures."""
