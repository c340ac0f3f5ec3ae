"""Does some test fail when the judge is made a little wrong?"""
