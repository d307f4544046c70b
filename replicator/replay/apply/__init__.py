"""The execution of a load: weigh, prepare, copy, commit."""
