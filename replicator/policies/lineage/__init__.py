"""Lineage: events of runs for catalogs of data, in OpenLineage's words."""
