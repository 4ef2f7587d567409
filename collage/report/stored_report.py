"""Reading the report and the summary of a bundle, with checks."""

from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from collage.errors import BundleError, InputError
from collage.report.data import REPORT_SCHEMA_VERSION, FunctionReport, ReportData
from collage.report.summary import Summary
from collage.runtime.bundle_folder import BundleFolder

REPORT, SUMMARY = "report.json", "summary.json"
MAX_REPORT_BYTES = 1 << 28
Document = TypeVar("Document", bound=BaseModel)


def read_report(path: Path) -> ReportData:
    """Read the report of a bundle.

    Args:
        path: the bundle, or its `report.json`.

    Raises:
        InputError: there is no report at the path.
        BundleError: the report is damaged, or of another version of Collage.
    """
    file = path if path.is_file() else path / REPORT
    data = _document(file, ReportData)
    if data.schema_version != REPORT_SCHEMA_VERSION:
        raise BundleError(
            f"{file} has schema {data.schema_version}, this version reads "
            f"{REPORT_SCHEMA_VERSION}; compile again"
        )
    for function in data.functions:
        _check_numbers(file, function)
    return data


def read_summary(bundle: Path) -> Summary:
    """Read the summary of a bundle. Raises the errors of `read_report`."""
    return _document(bundle / SUMMARY, Summary)


def _document(file: Path, model: type[Document]) -> Document:
    """Read a document of a bundle; its signature is not verified."""
    try:
        data = BundleFolder(file.parent).read(file.name, MAX_REPORT_BYTES)
        return model.model_validate_json(data)
    except (BundleError, FileNotFoundError):
        raise InputError(
            f"{file.parent} holds no {file.name}; is it a bundle of this version?"
        ) from None
    except OSError as error:
        raise BundleError(f"{file} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise BundleError(
            f"{file} is damaged, or of another version ({_first_fault(error)}); compile again"
        ) from error


def _first_fault(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'the document'}: {first['msg']}"[:300]


def _check_numbers(file: Path, function: FunctionReport) -> None:
    """Refuse a report with numbers of unknown nodes in regions or edges."""
    node_numbers = {node.index for node in function.nodes}
    named = {
        "nodes": [number for node in function.nodes for number in (*node.inputs, *node.outputs)],
        "regions": [number for region in function.regions for number in region.nodes],
    }
    wrong = next(
        (field for field, numbers in named.items() if not node_numbers.issuperset(numbers)), ""
    )
    if len(node_numbers) != len(function.nodes):
        wrong = "nodes"
    if not all(region.nodes for region in function.regions):
        wrong = "regions"
    if wrong:
        raise BundleError(
            f"{file} is damaged: the {wrong} of function {function.name} have missing, duplicate or "
            "unknown node numbers; compile again"
        )
