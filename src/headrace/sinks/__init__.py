"""Sinks: where a step's productions are delivered, after its commit or (weak ones) before it."""

from headrace.pipeline.sink import Deliverer, Delivery, Sink
from headrace.sinks.calls import Calls
from headrace.sinks.console import Console
from headrace.sinks.files import Files

__all__ = ["Calls", "Console", "Deliverer", "Delivery", "Files", "Sink"]
