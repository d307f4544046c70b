"""The entrance of the service: tokens, sessions, proxies, limits and times of requests, before they are answered."""
