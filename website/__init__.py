"""The documentation as a site: the reference from docstrings (`build`, `docstrings`), and its pictures (`pictures`)."""
