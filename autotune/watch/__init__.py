"""What runs inside a user's own training while it is probed: standard library alone, torch only once it is there.

`site/sitecustomize.py` starts it in every Python process of a probe; `python -m autotune.watch script.py` does where
that cannot reach (an interpreter that ignores PYTHONPATH).
"""
