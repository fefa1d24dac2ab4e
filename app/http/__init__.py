"""Connections, requests and answers as HTTP has them, whatever they are about."""
