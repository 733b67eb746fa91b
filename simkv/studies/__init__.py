"""What-if studies: one question each, answered from plans and runs."""
