"""Mono and Flux: cold, pulled, cancellable reactive types, which are also reactivex observables."""

from agentflow.reactive.bridge import LoopScheduler
from agentflow.reactive.call_mono import CallMono
from agentflow.reactive.flux import Flux
from agentflow.reactive.iterators import StreamIterator
from agentflow.reactive.mono import Just, Mono
from agentflow.reactive.publisher import Publisher, Source
from agentflow.reactive.sched import Threads, threads
from agentflow.reactive.signals import EMPTY, Empty, SourceTimeoutError
from agentflow.reactive.subscription import Subscription

__all__ = [
    "EMPTY",
    "CallMono",
    "Empty",
    "Flux",
    "Just",
    "LoopScheduler",
    "Mono",
    "Publisher",
    "Source",
    "SourceTimeoutError",
    "StreamIterator",
    "Subscription",
    "Threads",
    "threads",
]
