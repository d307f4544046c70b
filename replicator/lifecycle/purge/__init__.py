"""Purge: erases data subjects' rows from tables, backups and replicas, with a certificate (Gobblin compliance)."""
