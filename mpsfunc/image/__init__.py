"""Images made larger, smaller and padded, and side by side."""
