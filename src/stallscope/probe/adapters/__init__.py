"""Libraries that make samples their own way: what is a stage there, one file per library.

Where a library pulls samples through nested iterators, or calls functions from places that the
search of `probe/pipeline.py` cannot see, one function per library hooks those places. Only classes
are changed, through `Patches`, and only where the library has been imported. These hooks stay on
while a batch is not recorded, because an epoch's iterators may be made just then; without a batch
at work they only call their originals.
"""
