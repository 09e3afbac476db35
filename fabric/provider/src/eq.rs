//! Event queues of a fabric.
