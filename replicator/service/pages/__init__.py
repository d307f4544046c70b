"""The pages of the service: the API as HTML, readable without JavaScript."""
