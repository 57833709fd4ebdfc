"""Sinks: where a step's productions go after its commit."""

from headrace.sinks.base import Sink
from headrace.sinks.calls import Calls
from headrace.sinks.console import Console
from headrace.sinks.files import Files

__all__ = ["Calls", "Console", "Files", "Sink"]
