"""Authentication of gateway clients: TLS, Kerberos, frames, and refusals in other protocols."""
