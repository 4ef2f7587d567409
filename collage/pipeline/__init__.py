"""The stages in order, as plain functions: what the command line, a flow or a test calls."""

from collage.pipeline.compile import compare_bundle, compile_model
from collage.pipeline.doctor import Check, doctor
from collage.pipeline.session import open_costs

__all__ = ["Check", "compare_bundle", "compile_model", "doctor", "open_costs"]
