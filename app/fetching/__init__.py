"""Bytes given by URI, from where the operator has listed it."""
