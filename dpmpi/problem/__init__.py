"""Data become queries: rows, losses, penalties, batches, the local problem, its optimum."""
