"""Purge: erasure of persons' rows from tables, backups and replicas, with a certificate (Gobblin compliance)."""
