"""A repository assistant: it reads, edits and tests a repository in a sandbox folder. See README.md."""
