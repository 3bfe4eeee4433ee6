"""Who talks to whom, and the bytes in between."""
