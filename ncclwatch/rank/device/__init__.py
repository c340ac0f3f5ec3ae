"""What a rank's device has finished, by the account of its backend."""
