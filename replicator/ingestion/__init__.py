"""Ingestion: tables of other databases, landed in the warehouse by request and published like everything else."""
