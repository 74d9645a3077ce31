"""The ASGI applications under load; each module has `app(plan, streams)`, and imports one framework."""
