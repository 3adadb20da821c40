"""Where windows sit on an image, and which pixels they read; nothing here knows MLX."""
