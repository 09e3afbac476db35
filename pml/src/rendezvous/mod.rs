//! Messages too long to be sent at once (reference: bfo, section 5).
//!
//! ```text
//!   fragments     sender ── RNDV, first bytes ──► receiver
//!                        ◄── ACK offset, until ──
//!                        ── FRAG … FRAG ────────►
//!   get           sender ── RGET, exposed memory ──►  receiver reads it
//!                        ◄── FIN ───────────────────  or, when it cannot: ACK, and fragments
//!   put           sender ── RNDV, "can put" ──► receiver exposes its room
//!                        ◄── PUT ──────────────
//!                 sender writes
//!                        ── FIN ──────────────►       or, when it cannot: fragments
//! ```
//!
//! `receiver` and `sender` hold what an arrival changes; `tasks` holds what needs a rail.

pub(crate) mod receiver;
pub(crate) mod sender;
pub(crate) mod tasks;
