"""`ss.tune`: which settings of a loader would help: predicted from one recording, then measured."""
