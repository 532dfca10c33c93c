"""Advice: warnings, remedies, bottlenecks and problems of a machine."""
