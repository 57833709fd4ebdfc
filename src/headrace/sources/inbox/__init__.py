"""An inbox: outside processes append batches to it, and a pipeline reads each exactly once."""

from __future__ import annotations

from headrace.sources.inbox.producer import Producer
from headrace.sources.inbox.receipts import Receipts, recorded
from headrace.sources.inbox.source import Inbox

__all__ = ["Inbox", "Producer", "Receipts", "recorded"]
