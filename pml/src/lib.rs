//! Order, tag matching, eager and rendezvous protocols over any number of rails.
