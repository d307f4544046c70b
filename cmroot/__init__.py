"""The change-management root: bytes that sources let go, and the captured log. Stands alone."""
