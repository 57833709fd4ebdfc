"""Commands to a pipeline that runs, from any process that reaches its storage."""

from headrace.control.control import Control

__all__ = ["Control"]
