"""What is done when a job hangs: nothing unless its owner asks for it, and then by a policy that is data."""
