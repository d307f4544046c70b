"""Questions over HTTP: a table from paths to the commands that answer them."""
