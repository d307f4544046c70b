"""The pages of the service: what the API says as HTML for a person, readable without JavaScript."""
