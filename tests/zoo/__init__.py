"""Real training programs that hang, crash or stay healthy, and the runner that scores verdicts."""
