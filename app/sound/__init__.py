"""The microphone of this machine, in a child process."""
