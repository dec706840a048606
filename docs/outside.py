#!/usr/bin/env python3
"""Preprocessor of mdBook: links to files outside the book become links to the repository's files.

BOOK_SOURCES is the address of the repository's files. Without it, the links are to the files beside the book.
"""

import json
import os
import re
import sys
from pathlib import Path

if sys.argv[1:2] == ["supports"]:
    sys.exit(0)
context, book = json.load(sys.stdin)
root = Path(context["root"]).resolve().parent
sources = os.environ.get("BOOK_SOURCES", root.as_uri()).rstrip("/") + "/"


def rewrite(items):
    for item in items:
        if chapter := item.get("Chapter") if isinstance(item, dict) else None:
            chapter["content"] = re.sub(r"\]\(\.\./", f"]({sources}", chapter["content"])
            rewrite(chapter["sub_items"])


rewrite(book["items"])
json.dump(book, sys.stdout)
