"""Prefect flows: they parse parameters, call `collage`, and record results."""
