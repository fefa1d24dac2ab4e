# Written by `make client` from grasp_client/_async/__init__.py: change that one.
"""The client. `make client` writes `_sync` from it: change this one."""
