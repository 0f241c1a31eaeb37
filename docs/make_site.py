"""Builds the site into build/site: `make docs`.

Pages are those of docs/, the repository's own (README.md is the first page) and the generated
reference. zensical refuses dead links and anchors; a page outside of the navigation is refused
here, since zensical does not mind it. Nothing is fetched.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import make_picture
import make_reference
import yaml

CHECKOUT = Path(__file__).resolve().parent.parent
DOCS = CHECKOUT / "docs"
#: Where pages are put together; zensical's configuration lies beside them.
SOURCE = CHECKOUT / "build" / "site-source"
PAGES = SOURCE / "pages"
SITE = CHECKOUT / "build" / "site"
#: The repository's own pages, and where they are on the site.
FRONT = {
    "README.md": "index.md",
    "CHANGELOG.md": "CHANGELOG.md",
    "CONTRIBUTING.md": "CONTRIBUTING.md",
    "SECURITY.md": "SECURITY.md",
}
#: Files of the repository that the reference is made from: links to them lead to its pages.
MADE_FROM = {
    "hetero/__init__.py": "reference/python.md",
    "hetero/cli/__init__.py": "reference/cli.md",
    "hetero/kube/words/pod_request.py": "reference/annotations.md",
    "hetero/kube/words/settings.py": "reference/settings.md",
    "hetero/node/settings.py": "reference/settings.md",
    "hetero/plugin/__init__.py": "reference/plugin.md",
    "hetero/plugin/hookspecs.py": "reference/plugin.md",
}
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)")


def main() -> None:
    """Build the site, or end with what is wrong."""
    make_picture.write()
    shutil.rmtree(SOURCE, ignore_errors=True)
    put_together()
    if wrong := outside(PAGES):
        sys.exit("\n".join(wrong))
    zensical = Path(sys.executable).with_name("zensical")
    done = subprocess.run(
        [zensical, "build", "--strict", "--clean", "--config-file", SOURCE / "mkdocs.yml"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        # Its traceback says nothing that its warnings do not. It is coloured whatever is asked.
        sys.exit(re.sub(r"\x1b\[[\d;]*m", "", done.stdout + done.stderr.partition("Traceback")[0]))
    shutil.rmtree(SITE, ignore_errors=True)
    shutil.move(SOURCE / "site", SITE)
    print(f"{sum(1 for _ in PAGES.rglob('*.md'))} pages: build/site/index.html")


def put_together() -> None:
    """Copy all pages, with links as they are on the site, and generate the reference."""
    for path in DOCS.rglob("*"):
        if path.is_file() and path.suffix in (".md", ".png", ".svg", ".txt", ".json"):
            _copy(path, PAGES / path.relative_to(DOCS))
    for name, page in FRONT.items():
        _copy(CHECKOUT / name, PAGES / page)
    make_reference.write(PAGES / "reference")
    config = navigation()
    (SOURCE / "mkdocs.yml").write_text(yaml.safe_dump(config, sort_keys=False))


def navigation() -> dict[str, Any]:
    """Return zensical's configuration, with the pages that a pattern in its navigation means."""

    def meant(nav: Any) -> Any:
        match nav:
            case list():
                return [one for entry in nav for one in pages(entry)]
            case dict():
                return {title: meant(one) for title, one in nav.items()}
        return nav

    def pages(entry: Any) -> list[Any]:
        if isinstance(entry, str) and "*" in entry:
            return sorted(str(path.relative_to(DOCS)) for path in DOCS.glob(entry))
        return [meant(entry)]

    config: dict[str, Any] = yaml.safe_load((DOCS / "mkdocs.yml").read_text())
    return {**config, "nav": meant(config["nav"])}


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.suffix != ".md":
        shutil.copy(source, target)
        return

    def led(match: re.Match[str]) -> str:
        picture, text, link, anchor = match.groups()
        if not link:
            return match.group()
        page = on_the_site((source.parent / link).resolve())
        if page is None:  # a file or folder of the repository: the site has none of them
            return text
        return f"{picture}[{text}]({os.path.relpath(page, target.parent)}{anchor or ''})"

    target.write_text(_LINK.sub(led, source.read_text()))


def on_the_site(path: Path) -> Path | None:
    """Return where a file is among the pages, None where it is not; a dead link stays dead."""
    if path.is_relative_to(DOCS):
        return PAGES / path.relative_to(DOCS)
    if path.name in FRONT and path.parent == CHECKOUT:
        return PAGES / FRONT[path.name]
    if path.is_relative_to(CHECKOUT) and str(path.relative_to(CHECKOUT)) in MADE_FROM:
        return PAGES / MADE_FROM[str(path.relative_to(CHECKOUT))]
    return None if path.exists() else path


def outside(pages: Path) -> list[str]:
    """Return what is wrong between the pages and the navigation: nothing, if all is well."""
    named = list(_leaves(navigation()["nav"]))
    present = {str(path.relative_to(pages)) for path in pages.rglob("*.md")}
    return [
        *(f"{page}: is in no navigation (docs/mkdocs.yml)" for page in sorted(present - {*named})),
        *(f"{page}: is in the navigation, and nowhere else" for page in sorted({*named} - present)),
        *(
            f"{page}: is twice in the navigation"
            for page in sorted({*named})
            if named.count(page) > 1
        ),
    ]


def _leaves(nav: Any) -> Iterator[str]:
    match nav:
        case str():
            yield nav
        case list():
            for entry in nav:
                yield from _leaves(entry)
        case dict():
            for entry in nav.values():
                yield from _leaves(entry)


if __name__ == "__main__":
    main()
