"""What runs once on each node: it observes ranks from outside, reports to the server, and never judges."""
