"""Realtime voice: speech-to-speech models over a websocket, and the session in which an agent uses one (`docs/voice.md`)."""

from agentflow.models.realtime.gemini import GeminiLive
from agentflow.models.realtime.live import RealtimeModel
from agentflow.models.realtime.openai import OpenAIRealtime
from agentflow.models.realtime.session import RealtimeSession

__all__ = ["GeminiLive", "OpenAIRealtime", "RealtimeModel", "RealtimeSession"]
