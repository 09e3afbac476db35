//! libportals: the C library that Portals 4 programs link.
#![forbid(unsafe_code)]
