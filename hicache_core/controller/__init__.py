"""What the façade is made of: the ways of pages between L1, L2 and L3, and the books of requests."""
