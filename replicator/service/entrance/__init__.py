"""The entrance of the service: proxies, limits, sizes and times of requests, before they are answered."""
