"""Reading of databases through JDBC: what a table is, in which ranges it is read, and whether all of it arrived."""
