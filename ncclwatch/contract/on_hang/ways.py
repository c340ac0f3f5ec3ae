"""Names what a job's owner may ask for when it hangs. The rank imports this: the standard library alone."""

REPORT = "report"
RAISE = "raise"
BY_POLICY = "policy"
ENDING = ("abort", "restart", BY_POLICY)  # they may end the job
WAYS = (REPORT, "capture", RAISE, "abort", "restart", BY_POLICY)
