"""What engines share about memory: pools of pages."""
