//! A door: lets in whoever connects to one address, and says so. Who that is, is found out elsewhere.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::io::Errno;
use tokio::sync::mpsc::Sender;

use super::connection::Note;
use crate::transport::ModuleId;

/// How long to leave the door shut when the system has no descriptor for another guest.
const NO_ROOM: Duration = Duration::from_millis(50);

/// Somebody has connected.
#[derive(Debug)]
pub(super) struct Guest {
    /// Over which module.
    pub(super) module: ModuleId,
    /// The connection.
    pub(super) stream: TcpStream,
    /// From where.
    pub(super) from: SocketAddr,
}

/// Lets in, until the socket fails or nobody listens to us any more. Those who hear of the guests say how fast they come.
pub(super) async fn serve(module: ModuleId, listener: TcpListener, notes: Sender<Note>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let Ok(stream) = stream.into_std() else { continue };
                let guest = Guest { module, stream, from };
                if notes.send(Note::Guest(guest)).await.is_err() {
                    return;
                }
            }
            Err(error) => match after(&error) {
                Some(wait) => tokio::time::sleep(wait).await,
                None => return,
            },
        }
    }
}

/// How long to wait after this error; `None`: the socket itself is no good.
fn after(error: &io::Error) -> Option<Duration> {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => Some(NO_ROOM),
        Some(Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP) => None,
        // accept(2): errors of the network that a guest came over are reported here, and mean that guest only.
        _ => Some(Duration::ZERO),
    }
}
