"""A name means one thing: an engineer who has read a class once knows it wherever its name stands."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

PACKAGE = Path(__file__).parents[2] / "autotune"
APART = PACKAGE / "exports" / "scripts"
"""Programs that are written out beside a user's training; nothing of autotune reads them."""


def test_no_two_public_classes_share_a_name():
    defined = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        if not path.is_relative_to(APART):
            for node in ast.parse(path.read_bytes()).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    defined[node.name].append(path.relative_to(PACKAGE).as_posix())
    assert len(defined) > 500
    assert {name: places for name, places in defined.items() if len(places) > 1} == {}
