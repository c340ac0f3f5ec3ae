"""Says where the threads of a rank stand: by py-spy, or by the rank itself."""
