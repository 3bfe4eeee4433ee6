"""What a run costs in messages, bytes and seconds, counted, measured and predicted."""
