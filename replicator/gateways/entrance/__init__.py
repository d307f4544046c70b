"""The entrance of the gateway: TLS, Kerberos and frames of its clients, and refusals in other protocols."""
