"""The microphone and the loudspeaker of this machine, in a child process."""
