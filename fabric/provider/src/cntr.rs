//! Counters of completions and bytes.
