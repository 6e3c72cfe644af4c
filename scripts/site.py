#!/usr/bin/env python3
"""The documentation as a site: `make site`, which calls this with mdBook's program.

The pages of docs/ lead to others of the repository, such as the guides of policies, and to files.
So the book's source is a folder with the repository's pages and the files that they name, in
mdBook's layout: docs/SUMMARY.md with an appendix for the pages outside docs/. A README.md is the index
of its folder, and a link to a folder is one to that. What else is no page and no file is no link any
more. At the end every link of every page is followed, also into the page."""

import html.parser
import pathlib
import re
import shutil
import subprocess
import sys
import urllib.parse

ROOT = pathlib.Path(__file__).resolve().parent.parent
# A text, which may have a picture or brackets in it, and where it leads within the repository.
LINK = re.compile(r"\[((?:[^\[\]]|\[[^\]]*\](?:\([^)]*\))?)*)\]\((?!https?:|mailto:|#)([^)\s]+)\)")
# Texts for other sites, and the list that the book is made from.
LEFT_OUT = (".github/", "packaging/npm.md", "packaging/pypi.md", "docs/SUMMARY.md")


def tracked(*patterns):
    out = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, check=True, capture_output=True
    ).stdout
    return [name for name in out.decode().split("\0") if name]


def is_page(name):
    return name.endswith(".md") and not name.startswith(LEFT_OUT)


def placed(page):
    """Where a page is in the book's source."""
    if page == "README.md":
        return "readme.md"
    return page.replace("README.md", "index.md") if page.endswith("/README.md") else page


def target(page, link, pages, files):
    """Where a link of a page leads within the site, with the page or file. None if that is not in
    it."""
    path, mark, anchor = link.partition("#")
    found = pathlib.PurePosixPath(page).parent / urllib.parse.unquote(path)
    parts = []
    for part in found.parts:
        if part == ".." and parts:
            parts.pop()
        elif part not in (".", ".."):
            parts.append(part)
    name = "/".join(parts)
    if f"{name}/README.md" in pages:
        path, name = f"{path.rstrip('/')}/README.md", f"{name}/README.md"
    if name in pages:
        path = path[: len(path) - len(name.rsplit("/")[-1])] + placed(name).rsplit("/")[-1]
    elif name not in files:
        return None
    return f"{path}{mark}{anchor}", name


def copy_pages(source, pages, files):
    """Writes the pages, and the files that they name. What else they name is no link any more."""
    wanted = set()
    for page in pages:
        text = (ROOT / page).read_text()

        def replaced(match):
            shown = LINK.sub(replaced, match.group(1))
            found = target(page, match.group(2), pages, files)
            if found is None:
                return shown
            link, name = found
            if name not in pages:
                wanted.add(name)
            return f"[{shown}]({link})"

        text = LINK.sub(replaced, text)
        path = source / placed(page)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in wanted:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, source / name)


def title(page):
    for line in (ROOT / page).read_text().splitlines():
        if line.startswith("# "):
            return line[2:].strip()
    return page


def summary(pages):
    named = set()

    def replaced(match):
        page = f"docs/{match.group(2)}"
        named.add(page)
        return f"[{match.group(1)}]({placed(page)})"

    text = LINK.sub(replaced, (ROOT / "docs/SUMMARY.md").read_text())
    rest = sorted(page for page in pages if page not in named)
    entry = lambda page: f"- [{title(page)}]({placed(page)})\n"
    groups = {"Policies": "policies/", "The SDK and examples": ("wasm-sdk/", "examples/")}
    text += "\n"
    for group, prefix in groups.items():
        text += f"\n# {group}\n\n"
        text += "".join(entry(page) for page in rest if page.startswith(prefix))
        rest = [page for page in rest if not page.startswith(prefix)]
    text += "\n# The repository\n\n"
    return text + "".join(entry(page) for page in rest)


def redirect(to, more):
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>Weir</title>'
        f'<meta http-equiv="refresh" content="0; url={to}"><a href="{to}">Weir</a>{more}</html>\n'
    )


class Page(html.parser.HTMLParser):
    """The links of a page, and the places in it that have names."""

    def __init__(self):
        super().__init__()
        self.links, self.names = [], set()

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        for name in ("id", "name"):
            if attrs.get(name):
                self.names.add(attrs[name])
        for name in ("href", "src"):
            if attrs.get(name):
                self.links.append(attrs[name])


def broken(site):
    """The links that lead nowhere, each with its page."""
    pages = {}
    for path in site.rglob("*.html"):
        page = Page()
        page.feed(path.read_text(errors="replace"))
        pages[path.resolve()] = page
    wrong = []
    for path, page in sorted(pages.items()):
        if path.name in ("print.html", "toc.html", "404.html"):
            continue
        for link in page.links:
            parts = urllib.parse.urlsplit(link)
            if parts.scheme or parts.netloc or link == "#":
                continue
            to = path if not parts.path else (path.parent / urllib.parse.unquote(parts.path))
            to = to.resolve()
            to = to / "index.html" if to.is_dir() else to
            if not to.exists():
                wrong.append(f"{path.relative_to(site)}: {link}: there is no such file")
            elif parts.fragment and to in pages and parts.fragment not in pages[to].names:
                wrong.append(f"{path.relative_to(site)}: {link}: there is no such place")
    return wrong


def main(program, out):
    version = re.search(r'^version = "(.+)"', (ROOT / "Cargo.toml").read_text(), re.M).group(1)
    out = pathlib.Path(out).resolve()
    source, site = out / "source", out / "site" / version
    for folder in (source, site):
        shutil.rmtree(folder, ignore_errors=True)
    pages = {name for name in tracked("*.md") if is_page(name)}
    files = {name for name in tracked() if not name.endswith(".md")}
    copy_pages(source / "src", pages, files)
    (source / "src/SUMMARY.md").write_text(summary(pages))
    config = (ROOT / "book.toml").read_text()
    config = config.replace('src = "docs"', 'src = "src"')
    config = re.sub(r'build-dir = ".*"', f'build-dir = "{site}"', config)
    config = config.replace('title = "Weir"', f'title = "Weir {version}"')
    # An index has its name already, and nothing is included.
    config = config.replace("[build]", "[build]\nuse-default-preprocessors = false")
    (source / "book.toml").write_text(config)
    subprocess.run([program, "build", str(source)], check=True)
    # mdBook copies the first page to here, where its links lead nowhere.
    (site / "index.html").write_text(redirect("docs/index.html", ""))
    versions = sorted(path.name for path in (out / "site").iterdir() if path.is_dir())
    listed = "".join(f'<li><a href="{name}/">Weir {name}</a></li>' for name in versions)
    (out / "site/index.html").write_text(redirect(f"{version}/", f"<ul>{listed}</ul>"))
    wrong = broken(site)
    for line in wrong:
        print(line, file=sys.stderr)
    count = sum(1 for _ in site.rglob("*.html"))
    print(f"{site}: {count} pages, {len(wrong)} broken links")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
