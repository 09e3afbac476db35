//! What the client has the server do.

use crate::Result;
use crate::link::Link;

/// Receive a number of messages, and answer each with one of as many bytes.
pub(crate) const BOUNCE: u64 = 1;
/// Receive a number of messages, and report the end.
pub(crate) const SINK: u64 = 2;
/// Ends the server: there is no further order.
pub(crate) const END: [u64; 3] = [0, 0, 0];

/// Carries out orders until there are no more.
pub(crate) fn serve(link: &Link) -> Result<()> {
    loop {
        match link.take()? {
            [BOUNCE, count, bytes] => {
                for turn in 0..count as usize {
                    link.receive(turn)?;
                    link.send(bytes as usize)?;
                }
            }
            [SINK, count, _] => {
                for turn in 0..count as usize {
                    link.receive(turn)?;
                }
                link.give(END)?;
            }
            _ => return Ok(()),
        }
    }
}
