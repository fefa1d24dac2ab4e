"""What comes in: forms, raw bodies and uploads, streamed, checked and stored once."""
