"""The `grasp` command line, and the client of the service's HTTP API."""
