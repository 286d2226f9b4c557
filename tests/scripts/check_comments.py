#!/usr/bin/env python3
"""Prints every comment that opens without naming its subject (Of, What, Whose, …): check_comments.py ROOT [FOLDER…].

Fails when there is one, and when the word "what" stands more than twice in 1000 words of comments.
"""

import os
import re
import sys

FOLDERS = ["core", "swap", "ddl", "kfac", "pipe", "runtime", "tools", "python", "tests", "benchmarks", "examples"]
HEADLESS = re.compile(r"(of|what|whose|the same|the other way|whether|these|those|as|like)\b", re.IGNORECASE)
MOST_WHATS = 2  # in 1000 words


def comments(text):
    """Line, kind and text of each comment: lines of // that follow each other, and what stands behind code."""
    block, start, kind = [], 0, ""
    for number, line in enumerate([*text.split("\n"), ""], 1):
        whole = re.match(r"\s*(///?)\s?(.*)$", line)
        if whole:
            if not block:
                start, kind = number, whole.group(1)
            block.append(whole.group(2))
            continue
        if block:
            yield start, kind, " ".join(block)
            block = []
        behind = re.search(r"[;,{}()\w]\s+(///<|//)\s(.*)$", re.sub(r'"(?:\\.|[^"\\])*"', '""', line))
        if behind:
            yield number, behind.group(1), behind.group(2)


def main():
    os.chdir(sys.argv[1])
    words = whats = files = 0
    complaints = []
    for folder in sys.argv[2:] or FOLDERS:
        for place, _, names in os.walk(folder):
            for name in sorted(names):
                if not name.endswith((".h", ".cpp")):
                    continue
                files += 1
                with open(f"{place}/{name}", encoding="utf-8") as file:
                    for line, kind, comment in comments(file.read()):
                        words += len(comment.split())
                        whats += len(re.findall(r"\bwhat\b", comment, re.IGNORECASE))
                        if HEADLESS.match(comment) and kind.startswith("///"):
                            complaints.append(f"{place}/{name}:{line}: names no subject: {comment[:80]}")
    if words == 0:
        complaints.append("no comments found")
    share = 1000 * whats / max(1, words)
    if share > MOST_WHATS:
        complaints.append(f'{whats} times "what", {share:.1f} in 1000 words; {MOST_WHATS} are the most')
    print(
        "\n".join([*complaints, f"{words} words of comments in {files} files looked at, {len(complaints)} complaints"])
    )
    sys.exit(1 if complaints else 0)


main()
