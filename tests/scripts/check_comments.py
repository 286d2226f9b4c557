#!/usr/bin/env python3
"""Prints every comment that opens without naming its subject (Of, What, Whose, …): check_comments.py ROOT [FOLDER…].

It reads C++ in all folders, and Python in python/. Fails when there is such a comment, and when the word "what" stands
more than twice in 1000 words of comments.
"""

import ast
import io
import os
import re
import sys
import tokenize

FOLDERS = ["core", "swap", "ddl", "kfac", "pipe", "runtime", "tools", "python", "tests", "benchmarks", "examples"]
HEADLESS = re.compile(r"(of|what|whose|the same|the other way|whether|these|those|as|like)\b", re.IGNORECASE)
MOST_WHATS = 2  # in 1000 words


def comments_of_cpp(text):
    """Yields line, whether it must name its subject, and text of each comment: lines of // in a row, or behind code."""
    block, start, kind = [], 0, ""
    for number, line in enumerate([*text.split("\n"), ""], 1):
        whole = re.match(r"\s*(///?)\s?(.*)$", line)
        if whole:
            if not block:
                start, kind = number, whole.group(1)
            block.append(whole.group(2))
            continue
        if block:
            yield start, kind == "///", " ".join(block)
            block = []
        behind = re.search(r"[;,{}()\w]\s+(///<|//)\s(.*)$", re.sub(r'"(?:\\.|[^"\\])*"', '""', line))
        if behind:
            yield number, behind.group(1) == "///<", behind.group(2)


def comments_of_python(text):
    """Yields the same of each docstring and comment: lines of # in a row, or behind code, where #: alone documents."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            yield node.body[0].lineno, True, ast.get_docstring(node)
    block, start, last = [], 0, 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type != tokenize.COMMENT or token.string.startswith("#!"):
            continue
        line, comment = token.start[0], token.string.lstrip("#: ")
        is_whole = not token.line[: token.start[1]].strip()
        if block and not (is_whole and line == last + 1):
            yield start, True, " ".join(block)
            block = []
        if is_whole:
            start, last = start if block else line, line
            block.append(comment)
        else:
            yield line, token.string.startswith("#:"), comment
    if block:
        yield start, True, " ".join(block)


def comments_of(name):
    """Yields the comments of a file that is checked; nothing of others."""
    is_python = name.startswith("python/") and name.endswith((".py", ".pyi"))
    if is_python or name.endswith((".h", ".cpp")):
        with open(name, encoding="utf-8") as file:
            yield from (comments_of_python if is_python else comments_of_cpp)(file.read())


def main():
    os.chdir(sys.argv[1])
    words = whats = 0
    files, complaints = set(), []
    names = (
        f"{place}/{name}"
        for folder in sys.argv[2:] or FOLDERS
        for place, _, all in os.walk(folder)
        for name in sorted(all)
    )
    for name in names:
        for line, names_subject, comment in comments_of(name):
            files.add(name)
            words += len(comment.split())
            whats += len(re.findall(r"\bwhat\b", comment, re.IGNORECASE))
            if names_subject and HEADLESS.match(comment):
                complaints.append(f"{name}:{line}: names no subject: {comment[:80]}")
    if words == 0:
        complaints.append("no comments found")
    share = 1000 * whats / max(1, words)
    if share > MOST_WHATS:
        complaints.append(f'{whats} times "what", {share:.1f} in 1000 words; {MOST_WHATS} are the most')
    summary = f"{words} words of comments in {len(files)} files looked at, {len(complaints)} complaints"
    print("\n".join([*complaints, summary]))
    sys.exit(1 if complaints else 0)


main()
