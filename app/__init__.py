"""HTTP: what the outside world calls. Knows the registry, never torch."""
