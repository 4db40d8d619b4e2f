"""The places of a page that a script fills: what stands between two marks is made, the page's own sentences stay."""

from __future__ import annotations

END = "<!-- end of measured -->\n"


def fill(written: str, maker: str, made: str) -> str:
    """Return the page with `made` in the place of the script `maker` (a path). Raises SystemExit where it has none."""
    begin = f"<!-- measured: made by {maker} -->\n"
    before, found, rest = written.partition(begin)
    _, end, after = rest.partition(END)
    if not (found and end):
        raise SystemExit(f"the page has no place for the numbers: it needs {begin.strip()} and {END.strip()}")
    return before + begin + made + end + after
