//! getinfo: what is offered, and the matching of hints.
