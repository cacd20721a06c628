"""`ss.record`, `ss.instrumented` and the Run: from logs to tables."""
