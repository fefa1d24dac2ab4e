"""The client, to be awaited. `make client` writes `_sync` from it: change this one."""
