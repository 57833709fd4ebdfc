"""Declared schemas, for tests that know no pipeline."""

from __future__ import annotations

from headrace.pipeline.declared_schema import DeclaredComputation, DeclaredSchema


def declares(*names: str) -> DeclaredSchema:
    """Return the schema of computations without keys and state."""
    nothing: DeclaredComputation = {
        "key": [],
        "cells": {},
        "shapes": {},
        "reads": [],
        "watermark": "low",
    }
    return {
        "computations": dict.fromkeys(names, nothing),
        "injectors": {},
        "streams": {},
        "retained": [],
    }
