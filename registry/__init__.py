"""What is stored and its rules. Knows neither HTTP nor torch."""
