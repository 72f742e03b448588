"""What MkDocs does to the pages beside its own work.

A page may ask for what is written elsewhere, once: `<!-- command line -->` is the help of every command, `<!-- names:
MODULE -->` the reference of every public name of a module, `<!-- contributing: TITLE -->` a section of CONTRIBUTING.md.
"""

from __future__ import annotations

import contextlib
import io
import os
import posixpath
import re
from collections.abc import Callable, Iterator
from dataclasses import is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from mkdocs.utils import get_relative_url

SHIM, OWN_SHIM = re.compile(r"https://[^\"']+/iframe-worker/shim"), "assets/iframe-worker.js"
ROOT = Path(__file__).parents[2]
ASKED = re.compile(r"<!-- (command line|names|contributing)(?:: (.+?))? -->")
LINK = re.compile(r"\[([^\]]+)\]\((\.\./[^)#]+)(?:#[^)]*)?\)")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """The page with what it asks for. A file outside docs/ has no page on the site: its path is shown, not a link."""

    def path_of(link: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_uri), link[2]))
        if path.startswith("docs/"):
            return link[0]
        return f"`{path}`" if link[1].strip("`") == path else f"{link[1]} (`{path}`)"

    markdown = LINK.sub(path_of, markdown)
    return ASKED.sub(lambda asked: WRITERS[asked[1]](asked[2]), markdown)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """The one script that the offline search would fetch from elsewhere is our copy of it."""
    return SHIM.sub(get_relative_url(OWN_SHIM, page.url), output)


def contributing(title: str) -> str:
    """A section of CONTRIBUTING.md, without its title."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    return re.search(rf"^## {title}\n\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)[1]


def names(module: str) -> str:
    """The reference of every public name of a module; of what is a dataclass of constants, not its methods."""
    shown = import_module(module)
    level = 2 if module == "sr2.regularizers" else 3

    def entry(name: str) -> str:
        members = "false" if is_dataclass(getattr(shown, name)) else "null"
        return (
            f"::: {getattr(shown, name).__module__}.{name}\n    options: {{heading_level: {level}, members: {members}}}"
        )

    return "\n\n".join(entry(name) for name in shown.__all__)


def command_line(_: str) -> str:
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


WRITERS: dict[str, Callable[[str], str]] = {"command line": command_line, "names": names, "contributing": contributing}
