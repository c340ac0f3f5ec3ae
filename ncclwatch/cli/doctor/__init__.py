"""The checks of `ncclwatch doctor`: what a job and ncclwatch need here, and which nodes of a job do not report."""
