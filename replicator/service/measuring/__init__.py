"""Measures of the service: what ran, what lags, what is kept, as Prometheus reads them."""
