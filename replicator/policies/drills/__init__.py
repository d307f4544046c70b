"""Drills: rehearsals of a failover on shadow databases."""
