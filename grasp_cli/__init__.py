"""The `grasp` command line: what talks to a server, what runs one, and what merges without.

Of the rooms it uses the client for the first, the service for the second and grasp_core for the
third, each loaded by the command that needs it, so that `grasp --help` starts at once.
"""
