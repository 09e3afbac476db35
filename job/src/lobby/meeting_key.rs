//! The key of members that name each other by an address of IP and a port alone, between hosts.

use std::net::SocketAddr;
use std::path::Path;

use doorbell_oob::JobKey;

use super::address::Token;
use crate::config::Config;
use crate::error::Error;

/// The secret that takes the place of exchanged addresses: who has it knows the token of each member that has
/// it, too, by the socket that the member is reached at.
#[derive(Clone)]
pub struct MeetingKey(JobKey);

impl MeetingKey {
    /// Reads the key of the file that the setting `ofi.key_file` names; `None` where it names none.
    ///
    /// # Errors
    /// A file that is none, or that others can read.
    pub fn of(config: &Config) -> Result<Option<Self>, Error> {
        let path = config.ofi.key_file.get().as_ref();
        let key = path.map(|path| JobKey::read(Path::new(path))).transpose()?;
        Ok(key.map(Self))
    }

    /// Returns the token of the member that is reached at a socket.
    pub(super) fn token(&self, at: SocketAddr) -> Token {
        let derived = self.0.derive(&format!("member at {at}"));
        derived.expose().first_chunk().copied().unwrap_or_default()
    }
}

impl std::fmt::Debug for MeetingKey {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("MeetingKey")
    }
}
