"""What runs inside training: it only writes, into one ring file, and never raises or waits."""
