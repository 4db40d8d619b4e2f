"""The places of a page that a script fills: what stands between two marks is made, the page's own sentences stay."""

from __future__ import annotations


def fill(written: str, maker: str, made: str, what: str = "measured") -> str:
    """Return the page with `made` in the place of the script `maker` (a path). Raises SystemExit where it has none."""
    begin, final = f"<!-- {what}: made by {maker} -->\n", f"<!-- end of {what} -->\n"
    before, found, rest = written.partition(begin)
    _, end, after = rest.partition(final)
    if not (found and end):
        raise SystemExit(
            f"the page has no place for the numbers: it needs {begin.strip()} and {final.strip()}"
        )
    return before + begin + made + end + after
