//! Match bits, ignore bits, sources, priority and overflow order: one structure for the PML and the Portals NI.
