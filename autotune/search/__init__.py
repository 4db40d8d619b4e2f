"""Decide what to try next, and what has won, as pure functions of the history."""
