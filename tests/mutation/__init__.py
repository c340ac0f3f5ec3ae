"""Makes the judge a little wrong, again and again, to see whether some test fails each time."""
