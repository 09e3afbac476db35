//! Lock-free rings: SPSC, message lanes, MPSC mailbox, device descriptor ring, slab.
