"""What the agent of this node tells a rank of the hangs of its job, where the owner of the job has asked for it."""
