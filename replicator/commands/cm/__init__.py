"""The `cm` commands: kept files, slots, holds and expiry of a change-management root."""
