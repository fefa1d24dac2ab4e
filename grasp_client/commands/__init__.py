"""The commands that talk to a server, a module per noun."""
