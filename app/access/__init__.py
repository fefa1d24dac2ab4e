"""Who may come in: keys, tokens, browsers, and whose process is at the other end."""
