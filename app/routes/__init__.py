"""The operations, one module per noun. They are thin: find, do, show."""
