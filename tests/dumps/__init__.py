"""A simulated Megatron job, its faults with their truth, and what its Flight Recorder dumps and agents say."""
