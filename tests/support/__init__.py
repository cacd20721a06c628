"""What many tests need: built results, loaders, pipelines, and what a recording may not leave."""
