"""Pure functions of what was measured; never imports torch, the probe or what measures."""
