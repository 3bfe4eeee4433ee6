"""The commands beside training, one file or folder each."""
