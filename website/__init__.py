"""What makes the documentation a site: the reference from docstrings (`build`, `docstrings`), and its pictures (`pictures`)."""
