"""Blobs: where bytes are kept, who needs them, and whether they are still sound."""
