"""A load at work: weigh, prepare, copy, commit."""
