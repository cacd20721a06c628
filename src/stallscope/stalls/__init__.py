"""Why the training loop waits, and when: attribution, causes, patterns."""
