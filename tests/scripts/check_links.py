"""check_links.py ROOT: fails when a page names a file, heading or function of the tree that is not there.

Looks at every Markdown page that git tracks: relative links, their anchors, files that the text names by a path from
the root, and functions that stand behind such a file as in "core/ledger.cpp: `try_charge`".
The changelog may name files that were moved or deleted.
"""

import os
import re
import subprocess
import sys

LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)|\b(?:src|href|srcset)=\"([^\"]+)\"")
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)
SPAN = re.compile(r"`([^`\n]+)`")
HEADING = re.compile(r"^#+ +(.+?)\s*$", re.M)
ANCHOR = re.compile(r"<a (?:id|name)=\"([^\"]+)\"")
# A path from the root of the tree to one file.
ROOMS = "core|swap|ddl|kfac|pipe|runtime|tools|python|tests|examples|benchmarks|docs|scripts"
PATH = re.compile(rf"(?<![\w/.-])(?:{ROOMS})(?:/[a-z0-9_]+)+\.(?:cpp|cu|h|py|sh)\b")
FUNCTIONS = re.compile(rf"({PATH.pattern}): (`\w+`(?:, `\w+`)*)")


def slug(heading):
    """The anchor that GitHub gives a heading."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).replace(" ", "-")


def anchors(text):
    """All anchors of a page; a heading that stands again has -1, -2 and so on behind it."""
    found, seen = set(ANCHOR.findall(text)), {}
    for heading in HEADING.findall(FENCE.sub("", text)):
        name = slug(heading)
        seen[name] = seen.get(name, -1) + 1
        found.add(name if seen[name] == 0 else f"{name}-{seen[name]}")
    return found


def complaints(page, texts, tracked):
    text = FENCE.sub("", texts[page])
    for first, second in LINK.findall(SPAN.sub("", text)):
        link = first or second
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = os.path.normpath(os.path.join(os.path.dirname(page), path)) if path else page
        if not os.path.exists(target):
            yield f"{page}: no file for the link {link}"
        elif anchor and target in texts and anchor not in anchors(texts[target]):
            yield f"{page}: no heading for the link {link}"
    if page == "CHANGELOG.md":
        return
    for path in PATH.findall(texts[page]):
        if path not in tracked:
            yield f"{page}: no file {path}"
    for path, names in FUNCTIONS.findall(texts[page]):
        if path in tracked:
            with open(path, encoding="utf-8") as file:
                words = set(re.findall(r"\w+", file.read()))
            yield from (f"{page}: no {name} in {path}" for name in re.findall(r"\w+", names) if name not in words)


def main():
    os.chdir(sys.argv[1])
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], check=True, capture_output=True, text=True
    )
    tracked = set(listed.stdout.split("\n"))
    texts = {}
    for page in sorted(name for name in tracked if name.endswith(".md") and os.path.exists(name)):
        with open(page, encoding="utf-8") as file:
            texts[page] = file.read()
    wrong = [complaint for page in texts for complaint in complaints(page, texts, tracked)]
    print("\n".join([*wrong, f"{len(texts)} pages looked at, {len(wrong)} wrong links"]))
    sys.exit(1 if wrong else 0)


main()
