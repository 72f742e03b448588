"""Every link of the built site leads somewhere, and no page fetches anything: python docs/tools/check_site.py site"""

from __future__ import annotations

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

FETCHED = {("link", "href"), ("script", "src"), ("img", "src"), ("source", "src"), ("iframe", "src")}


class Page(HTMLParser):
    """The anchors of a page, what it links to, and what it loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[tuple[str, bool]] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if value is None:
                continue
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value)
            elif (tag == "a" and name == "href") or (tag, name) in FETCHED:
                self.links.append((value, tag != "a"))


def mistakes(site: Path) -> list[str]:
    """One sentence per link that leads nowhere and per file that would come from elsewhere."""
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    found = []
    for path, page in pages.items():
        for link, fetched in page.links:
            url = urlsplit(link)
            if url.scheme or url.netloc:
                found += [f"{path.name} loads {link}"] if fetched and url.scheme != "data" else []
                continue
            target = (path.parent / unquote(url.path)).resolve() if url.path else path
            if not target.exists():
                found.append(f"{path.name} links to {link}, which does not exist")
            elif url.fragment and target in pages and unquote(url.fragment) not in pages[target].anchors:
                found.append(f"{path.name} links to {link}, which has no such anchor")
    return found


if __name__ == "__main__":
    wrong = mistakes(Path(sys.argv[1]))
    print("\n".join(wrong) or "every link leads somewhere, and nothing is fetched")
    sys.exit(bool(wrong))
