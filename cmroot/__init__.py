"""The change-management root: kept bytes and the captured log. Stands alone."""
