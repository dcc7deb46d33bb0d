"""Text in and text out."""
