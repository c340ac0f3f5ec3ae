"""The pages: what a person sees in a browser. Made on the server, so that they need no build and no other host.

`sight` copies what the event loop owns, everything else works on such copies in a thread: a page that is slow to
make delays no digest. `board` keeps the last minutes of each job and tells open pages what is new.
"""
