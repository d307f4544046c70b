"""Actions over HTTP: POST endpoints with consent and idempotency keys; each starts a run, or calls a command, once."""
