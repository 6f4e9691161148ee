"""The history of all jobs as one HTML page that needs no network."""
