//! A Portals 4 network interface in hardware: libportals, loaded at run time.
#![forbid(unsafe_code)]
