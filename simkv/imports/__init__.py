"""What a real server was told and what it wrote: launch commands and logs."""
