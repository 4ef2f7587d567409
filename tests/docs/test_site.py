"""The site of the documents: what `make docs` accepts and refuses, on a small checkout."""

import importlib.util
import re
import shutil

import pytest
from mkdocs.commands.build import build
from mkdocs.config import load_config
from mkdocs.exceptions import Abort, BuildError

from tests.documents import ROOT

FILES = {
    "README.md": "# Small\n\n[Page](docs/page.md#its-part-a--b)\n",
    "docs/index.md": "# Contents\n\n[Home](../README.md)\n\n## Use it\n\n* [Page](page.md): more\n",
    "docs/page.md": "# Page\n\n## Its part: `A` & B\n\n![chart](chart.png) [code](../code/main.cc)\n",
    "docs/chart.png": "",
    "code/main.cc": "int main() {}\n",
}
HOOKS = "docs/site_hooks.py"


@pytest.fixture
def checkout(tmp_path):
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    for name in ("mkdocs.yml", HOOKS):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make_site(checkout):
    config = load_config(str(checkout / "mkdocs.yml"), site_dir=str(checkout / "site"))
    build(config)
    return checkout / "site"


def hooks():
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / HOOKS)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_site_has_the_tree_of_the_checkout(checkout):
    site = make_site(checkout)
    assert 'href="docs/page/#its-part-a--b"' in (site / "index.html").read_text()
    page = (site / "docs/page/index.html").read_text()
    assert 'id="its-part-a--b"' in page
    assert (site / "docs/chart.png").is_file()
    assert (site / "code/main.cc").read_text() == FILES["code/main.cc"]


def test_the_navigation_is_the_page_of_contents(checkout):
    page = (make_site(checkout) / "index.html").read_text()
    assert page.index(">Use it<") < page.index(">Page<")


@pytest.mark.parametrize(
    "text",
    [
        "[gone](gone.md)",
        "[gone](gone.png)",
        "[gone](#gone)",
        "[gone](../README.md#gone)",
        "[absolute](/docs/page.md)",
        "[folder](../code)",
    ],
)
def test_a_link_that_leads_nowhere_fails(checkout, text):
    (checkout / "docs/page.md").write_text(f"# Page\n\n{text}\n")
    (checkout / "README.md").write_text("# Small\n")
    with pytest.raises(Abort, match="warnings in strict mode"):
        make_site(checkout)


def test_a_document_that_the_contents_lack_fails(checkout):
    (checkout / "docs/more.md").write_text("# More\n")
    with pytest.raises(Abort, match="warnings in strict mode"):
        make_site(checkout)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("text\n* item", "an empty line belongs before the list at: \\* item"),
        ("![x](https://example.com/x.png)", "fetches from another host: <img"),
        ('<script src="//example.com/x.js"></script>', "fetches from another host: <script"),
    ],
)
def test_what_other_readers_see_differently_fails(checkout, text, reason, caplog):
    (checkout / "docs/page.md").write_text(f"# Page\n\n## Its part: A & B\n\n{text}\n")
    with pytest.raises((Abort, BuildError)):
        make_site(checkout)
    assert any(re.search(reason, message) for message in caplog.messages)


def test_the_documents_of_this_checkout_are_all_there():
    listed = set(hooks().documents())
    assert {"README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/index.md"} < listed
    assert {str(file.relative_to(ROOT)) for file in ROOT.glob("docs/**/*.md")} < listed


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [("Rotate a key", "rotate-a-key"), ("What's in `a_b`?", "whats-in-a_b"), ("A & B", "a--b")],
)
def test_anchors_are_those_of_github(heading, anchor):
    assert hooks().slug(heading, "-") == anchor
