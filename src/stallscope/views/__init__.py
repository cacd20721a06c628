"""Results as text, HTML and widgets."""
