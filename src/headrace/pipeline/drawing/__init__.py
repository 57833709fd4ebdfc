"""A pipeline for people's eyes: as text, and as a drawing."""

from __future__ import annotations

from headrace.pipeline.drawing.svg import svg_of
from headrace.pipeline.drawing.text import text_of

__all__ = ["svg_of", "text_of"]
