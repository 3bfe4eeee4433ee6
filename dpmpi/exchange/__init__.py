"""How requests become hops."""
