"""One tool call: vetted, attempted under its lock and its limits, its pieces handed out, closed on every path."""
