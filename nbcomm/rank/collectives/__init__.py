"""What is known of each collective while it runs: its signature, fingerprint, record, journal and values."""
