"""A user's own training command as the thing that is probed: its template, its axes, and what was watched of it."""
