"""Asking a user's function twice: at x and at the trial point."""
