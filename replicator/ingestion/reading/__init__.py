"""Reading of databases through JDBC: table definitions, ranges of parallel readers, completeness."""
