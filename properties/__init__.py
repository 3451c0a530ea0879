"""The laws, what they may ask for, and the engine that samples them."""
