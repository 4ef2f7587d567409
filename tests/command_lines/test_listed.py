"""The documents' command lines and the lists of what runs them agree, both ways."""

import ast

import pytest

from tests.command_lines.listed import ELSEWHERE, EXCEPTIONS, RUN
from tests.command_lines.parse import all_command_lines, command_lines, named_commands
from tests.documents import ROOT
from tests.test_cli import commands

LISTS = {"RUN": RUN, "ELSEWHERE": ELSEWHERE, "EXCEPTIONS": EXCEPTIONS}


@pytest.mark.parametrize("line", all_command_lines(), ids=lambda line: line.text[:60])
def test_every_command_line_has_a_test_or_a_reason(line):
    lists = [name for name, listed in LISTS.items() if line.text in listed]
    assert len(lists) == 1, (
        f"{line.document} shows `{line.text}`, which is in {' and '.join(lists) or 'no list'} of "
        "tests/command_lines/listed.py: add it to RUN (how test_collage.py runs it on small models), to"
        " ELSEWHERE (the test that runs it) or to EXCEPTIONS (why nothing can), and to one of them alone"
    )


def test_no_list_has_a_line_that_no_document_shows():
    shown = {line.text for line in all_command_lines()}
    stale = [
        f"{name}: {line}" for name, listed in LISTS.items() for line in listed if line not in shown
    ]
    assert not stale, "remove these from tests/command_lines/listed.py"


@pytest.mark.parametrize("test", sorted(set(ELSEWHERE.values())))
def test_the_listed_tests_exist(test):
    file, _, name = test.partition("::")
    functions = ast.parse((ROOT / file).read_text()).body
    assert name in {
        definition.name for definition in functions if isinstance(definition, ast.FunctionDef)
    }


def test_every_exception_has_a_reason():
    assert all(len(reason.split()) >= 5 for reason in EXCEPTIONS.values())


def test_commands_that_documents_name_exist():
    assert named_commands() - {"diff"} <= set(commands())
    assert "compile" in named_commands()


def test_lines_are_found_wherever_they_stand():
    """In blocks: continued, behind variables, beside others; in text: wrapped, but not a program's name."""
    text = """
`make test` and `collage` and `collage gc` and `collage gc
STORE`

```
A=1 collage run b   # checks
helm install x \\
  --set a=b && helm test x
prefect server start &
s3://models/collage
```
```python
collage.compile()
```
"""
    assert list(command_lines(text)) == [
        "collage run b", "helm install x --set a=b", "helm test x", "prefect server start",
        "make test", "collage gc STORE",
    ]  # fmt: skip
