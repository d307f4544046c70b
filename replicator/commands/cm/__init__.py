"""The `cm` commands: what a change-management root keeps, for whom, and for how long."""
