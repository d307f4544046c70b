"""Drivers of fsspec: how they are opened, and what is mended in them."""
