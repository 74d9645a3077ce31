"""One tool call: vetting, attempts with lock and time limit, chunks, and closing on every path."""
