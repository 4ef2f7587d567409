"""The stages in order, as plain functions: what the command line, a flow or a test calls."""

from collage.pipeline.bundle_comparison import compare_bundle
from collage.pipeline.candidate_list import ListedBackend, list_candidates
from collage.pipeline.compile import compile_model
from collage.pipeline.compile_service import CompileService, LocalCompileService
from collage.pipeline.doctor import Check, doctor
from collage.pipeline.module_compile import compile_module
from collage.pipeline.request import CompileRequest, CompileResult, RequestOptions, submit

__all__ = [
    "Check",
    "CompileRequest",
    "CompileResult",
    "ListedBackend",
    "LocalCompileService",
    "RequestOptions",
    "CompileService",
    "compare_bundle",
    "compile_model",
    "compile_module",
    "doctor",
    "list_candidates",
    "submit",
]
