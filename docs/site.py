"""The build of the site adds to docs/ what programs write, the repository's own pages, and files that a page names.

A page is generated from the programs' tables (tools/generated_pages.py). A link to the file of such a table opens the
generated page on the site. A link to another file, such as `../server/.../votes.py`, opens a page with that file. So a
page reads the same in the repository and on the site. A link to what does not exist fails the build.
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path, PurePosixPath
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from tools import generated_pages

ROOT = Path(__file__).resolve().parent.parent
REPOSITORY_PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changes.md",
    "SECURITY.md": "security.md",
}
LINK = re.compile(r"(\]\()([^)\s#]+)(#[^)\s]*)?(\))")
LANGUAGES = {
    ".py": "python",
    ".toml": "toml",
    ".sh": "bash",
    ".yaml": "yaml",
    ".yml": "yaml",
    ".proto": "protobuf",
    ".ipynb": "json",
}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, uri in REPOSITORY_PAGES.items():
        files.append(File.generated(config, uri, content=(ROOT / name).read_text(encoding="utf-8")))
    for uri, text in generated_pages.pages().items():
        files.append(File.generated(config, uri, content=text))
    named: set[str] = set()
    for file in files.documentation_pages():
        folder = _origin(file.src_uri).parent
        for _, target, _, _ in LINK.findall(file.content_string):
            path = posixpath.normpath((folder / target).as_posix())
            if "://" not in target and not _on_site(path) and (ROOT / path).exists():
                named.add(path)
    for path in sorted(named):
        files.append(File.generated(config, _source_page(path), content=_shown(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    origin = _origin(page.file.src_uri)
    here = PurePosixPath(page.file.src_uri).parent
    if page.file.src_uri.startswith("source/"):
        return markdown
    markdown = generated_pages.fill(markdown)

    def rewritten(found: re.Match[str]) -> str:
        opening, target, anchor, closing = found.groups()
        if "://" in target or target.startswith("mailto:"):
            return found.group(0)
        path = posixpath.normpath((origin.parent / target).as_posix())
        uri = _on_site(path) or (_source_page(path) if (ROOT / path).exists() else None)
        if uri is None:
            return found.group(0)  # mkdocs names it
        return f"{opening}{os.path.relpath(uri, here)}{anchor or ''}{closing}"

    return LINK.sub(rewritten, markdown)


def _origin(uri: str) -> PurePosixPath:
    """Where a page of the site stands in the repository."""
    back = {there: name for name, there in REPOSITORY_PAGES.items()}
    return PurePosixPath(back.get(uri, f"docs/{uri}"))


def _on_site(path: str) -> str | None:
    """The page, picture or other file of the site that shows this file of the repository."""
    if path in REPOSITORY_PAGES:
        return REPOSITORY_PAGES[path]
    if path in generated_pages.SOURCES:
        return generated_pages.SOURCES[path]
    return path.removeprefix("docs/") if path.startswith("docs/") and path != "docs/site.py" else None


def _source_page(path: str) -> str:
    return f"source/{path.strip('.').replace('/.', '/')}.md"


def _shown(path: str) -> str:
    """A page with the file, or with the names in the folder."""
    source = ROOT / path
    if source.is_dir():
        names = sorted(
            item.name + "/" * item.is_dir() for item in source.iterdir() if not item.name.startswith(("__", "."))
        )
        return f"# {path}\n\n" + "".join(f"* `{name}`\n" for name in names)
    text = source.read_text(encoding="utf-8")
    fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`{3,}", text))])
    return f"# {path}\n\n{fence}{LANGUAGES.get(source.suffix, 'text')}\n{text}\n{fence}\n"


def on_post_build(config: dict[str, Any]) -> None:
    """The pages load nothing from another host."""
    for page in Path(config["site_dir"]).rglob("*.html"):
        loaded = re.findall(r'(?:src|href)="(https?://[^"]+)"[^>]*>', page.read_text(encoding="utf-8"))
        sources = [url for url in loaded if re.search(r"\.(?:js|css|woff2?)(?:\?|$)", url)]
        if sources:
            raise SystemExit(f"{page}: loads {sources[0]}")
