"""When workers merge: all at the end of a round, those that have arrived, or each by itself."""
