//! Waits: descriptors, wait sets and poll sets.
