"""Show a run to people: live on the terminal while it runs, and as tables or JSON afterwards."""
