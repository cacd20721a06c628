"""`ss.tune`: better loader settings, predicted from one recording, then measured."""
