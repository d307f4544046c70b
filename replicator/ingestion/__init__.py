"""Ingestion: tables of other people's databases, landed in the warehouse by request and published like everything else."""
