//! Processes that belong to no job and meet by their addresses: over shared memory, real processes.
//!
//! | file | what it tries |
//! |---|---|
//! | `meeting.rs` | who speaks first, both at once, many at once, a sleeper |
//! | `ends.rs` | a peer that is killed, closes, leaves, or was never there |
//! | `strangers.rs` | wrong tokens, nonsense and floods at a desk |
//! | `again.rs` | peers that come and go many times: descriptors and memory |
//! | `hosts.rs` | members of two hosts: hellos, doors, links that fail, addresses that lead nowhere |
//! | `windows.rs` | puts, gets and atomics on the windows of a peer |
//! | `node.rs` | a member as the tests drive it, in this process and in others |

mod again;
mod ends;
mod hosts;
mod meeting;
mod node;
mod strangers;
mod windows;

/// What a started process does; without its role, this is no test.
#[test]
fn role() {
    node::play();
}
