"""What rounds, starts and memory cost on this machine: `python -m dpmpi bench`."""
