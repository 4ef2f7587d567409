"""What mkdocs needs to know to make a site of the documents where they lie.

The site has the repository's tree, so that the same relative links work on the site and on the repository's
host. docs/index.md is the table of contents: the navigation is read from it, and a document that it does
not link fails the build. Files that documents link (pictures, examples, policies) become part of the site.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    "*.md",
    "docs/**/*.md",
    "examples/README.md",
    "helm/collage/README.md",
    "benchmarks/**/RESULTS*.md",
)
INDEX = "docs/index.md"
_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[([^\]]*)\]\(([^)#\s]+)[^)]*\)")
_ITEM = re.compile(r" *(?:[*+-]|\d+\.) ")
_OUTSIDE = re.compile(
    r"<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=[\"']?(?:https?:)?//[^>]*>"
    r"|(?:url\(|@import )[\"']?(?:https?:)?//[^)\s]*"
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the navigation from docs/index.md, and anchors from GitHub's rule."""
    config.nav = list(navigation((ROOT / INDEX).read_text()))
    config.mdx_configs["toc"] = {**config.mdx_configs.get("toc", {}), "slugify": slug}
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Replace the content of docs/ by the documents of the repository and the files that they link."""
    paths = dict.fromkeys(
        path for document in documents() for path in (document, *linked(document))
    )
    theme = [file for file in files if file.src_dir != config.docs_dir]
    return Files([*theme, *(_site_file(path, config) for path in paths)])


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Refuse what GitHub shows as a list and Python-Markdown as a paragraph."""
    before = ""
    for line in _FENCE.sub("", markdown).splitlines():
        text_before = before.strip() and not _ITEM.match(before) and not before.startswith(" ")
        if _ITEM.match(line) and text_before:
            raise PluginError(
                f"{page.file.src_uri}: an empty line belongs before the list at: {line}"
            )
        before = line
    return markdown


def on_post_build(config: MkDocsConfig) -> None:
    """Refuse scripts, styles, fonts and pictures that a reader's browser would fetch from another host."""
    site = Path(config.site_dir)
    for file in sorted([*site.rglob("*.html"), *site.rglob("*.css")]):
        if fetched := _OUTSIDE.search(file.read_text()):
            raise PluginError(f"{file.relative_to(site)} fetches from another host: {fetched[0]}")


def documents() -> list[str]:
    """List the documents of the site, relative to the checkout."""
    files = {file for pattern in DOCUMENTS for file in ROOT.glob(pattern)}
    return sorted(str(file.relative_to(ROOT)) for file in files)


def linked(document: str) -> Iterator[str]:
    """Yield the files other than documents that `document` links, relative to the checkout."""
    for _, target in _LINK.findall(_FENCE.sub("", (ROOT / document).read_text())):
        path = posixpath.normpath(posixpath.join(posixpath.dirname(document), target))
        if not path.endswith(".md") and not path.startswith("..") and (ROOT / path).is_file():
            yield path


def navigation(index: str) -> Iterator[dict[str, object]]:
    """Yield mkdocs' navigation: menus are second-level headings of docs/index.md, entries its links.

    >>> list(navigation("[Home](../README.md)\\n## Use it\\n* [Flows](flows.md): runs\\n"))
    [{'Home': 'README.md'}, {'Contents': 'docs/index.md'}, {'Use it': [{'Flows': 'docs/flows.md'}]}]
    """
    head, *sections = re.split(r"^## ", index, flags=re.MULTILINE)
    yield from _entries(head)
    yield {"Contents": INDEX}
    for section in sections:
        title, _, body = section.partition("\n")
        yield {title: list(_entries(body))}


def _entries(text: str) -> Iterator[dict[str, object]]:
    folder = posixpath.dirname(INDEX)
    for title, target in _LINK.findall(text):
        yield {title: posixpath.normpath(posixpath.join(folder, target))}


def slug(heading: str, separator: str) -> str:
    """Return the anchor that GitHub gives a heading.

    >>> slug("How it's done: A & B", "-")
    'how-its-done-a--b'
    """
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", separator)


def _site_file(path: str, config: MkDocsConfig) -> File:
    return File(path, str(ROOT), config.site_dir, config.use_directory_urls)
