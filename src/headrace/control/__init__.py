"""Commands to a pipeline, running or not, from any process that can reach its storage."""

from headrace.control.control import Control

__all__ = ["Control"]
