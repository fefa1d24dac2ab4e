"""What every process of the service needs: settings, logs, traces, its home."""
