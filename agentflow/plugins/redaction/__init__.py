"""`Redaction`: keeps secrets and personal data from models, stores and logs (`docs/plugins/redaction.md`)."""

from agentflow.plugins.redaction.detectors import DETECTORS, SECRET_RULES, Detector
from agentflow.plugins.redaction.hook import Redaction

__all__ = ["DETECTORS", "SECRET_RULES", "Detector", "Redaction"]
