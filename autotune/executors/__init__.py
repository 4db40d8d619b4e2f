"""Where probes run: here, on several ranks, or nowhere, answered by prediction."""
