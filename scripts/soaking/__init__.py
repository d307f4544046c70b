"""The soak: writers, a policy that follows them, and somebody who kills all of it at random. `scripts/soak_sync`."""
