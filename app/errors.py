"""The app's errors."""
