"""Questions that PyTorch users asked in public, each rebuilt as a small loader."""
