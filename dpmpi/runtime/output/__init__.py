"""What a run writes, shows and leaves behind."""
