"""What a run needs to go on after a failure."""
