"""What every room needs of the operating system: errors, files, child processes, memory limits."""
