"""Doors of ingestion: who asks, what may be asked, requests in files and in tables, and what is answered."""
