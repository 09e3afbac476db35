//! Registrations of memory.
