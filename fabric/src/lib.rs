//! The contracts between drivers and protocols; memory, addresses, clock, counters, discovery.
