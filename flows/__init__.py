"""Prefect flows: they parse what they are given, call `collage`, and record what came of it."""
