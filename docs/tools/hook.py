"""What MkDocs does to the pages beside its own work: the command line's help, links out of docs/, nothing fetched."""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import re
from collections.abc import Iterator
from typing import Any

from mkdocs.utils import get_relative_url

SHIM, OWN_SHIM = "https://unpkg.com/iframe-worker/shim", "assets/iframe-worker.js"
LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page as it is built. On the site a file outside docs/ has no page, so its path is shown instead of a link."""

    def path_of(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), link[2]))
        if path.startswith("docs/"):
            return link[0]
        return f"`{path}`" if link[1].strip("`") == path else f"{link[1]} (`{path}`)"

    if "<!-- command line -->" in markdown:
        markdown = markdown.replace("<!-- command line -->", command_line())
    return LINK.sub(path_of, markdown)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """The one script that the offline search would fetch from elsewhere is our copy of it."""
    return output.replace(SHIM, get_relative_url(OWN_SHIM, page.url))


def command_line() -> str:
    """Every command with its --help, as the terminal shows it."""
    return "\n\n".join(
        f"{'#' * (1 + len(words))} sr2 {' '.join(words)}\n\n```text\n{said}\n```" for words, said in commands()
    )


def commands(words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """The commands below `sr2 words`, in the order of its help, each with what its own help says."""
    for name in re.findall(r"^ +• (\w+) ", help_of(words), re.MULTILINE):
        below = (*words, name)
        yield below, help_of(below)
        yield from commands(below)


def help_of(words: tuple[str, ...]) -> str:
    from sr2.cli import main

    said, columns = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
            main([*words, "--help"])
    finally:
        os.environ.pop("COLUMNS") if columns is None else os.environ.update(COLUMNS=columns)
    return "\n".join(line.rstrip() for line in said.getvalue().strip().splitlines())
