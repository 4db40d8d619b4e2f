"""Results of all nights in one store: rows, queries, reuse, and what regressed."""
