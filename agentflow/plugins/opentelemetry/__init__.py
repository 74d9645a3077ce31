"""`OpenTelemetry`: traces and metrics of a run (`docs/plugins/opentelemetry.md`)."""

from agentflow.plugins.opentelemetry.hook import OpenTelemetry

__all__ = ["OpenTelemetry"]
