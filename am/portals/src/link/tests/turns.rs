//! Ways that break and come back, one story each.
