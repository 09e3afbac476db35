//! A listener: accepts the connections to one address and passes them on; identification happens elsewhere.

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use rustix::io::Errno;
use tokio::sync::mpsc::Sender;

use super::connection::Note;
use crate::transport::ModuleId;

/// Pause of accepting when no descriptor is left for another connection.
const NO_ROOM: Duration = Duration::from_millis(50);

/// An accepted connection.
#[derive(Debug)]
pub(super) struct Incoming {
    /// The module of the listener.
    pub(super) module: ModuleId,
    /// The connection's socket.
    pub(super) stream: TcpStream,
    /// The address of the peer.
    pub(super) from: SocketAddr,
}

/// Accepts until the socket fails or the receiver of the notes is gone. The receiver sets the pace.
pub(super) async fn serve(module: ModuleId, listener: TcpListener, notes: Sender<Note>) {
    let Ok(listener) = tokio::net::TcpListener::from_std(listener) else {
        return;
    };
    loop {
        match listener.accept().await {
            Ok((stream, from)) => {
                let Ok(stream) = stream.into_std() else { continue };
                let incoming = Incoming { module, stream, from };
                if notes.send(Note::Incoming(incoming)).await.is_err() {
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

/// Returns how long to wait after this error; `None` if the listening socket itself has failed.
fn after(error: &io::Error) -> Option<Duration> {
    match Errno::from_io_error(error) {
        Some(Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM) => Some(NO_ROOM),
        Some(Errno::BADF | Errno::INVAL | Errno::NOTSOCK | Errno::OPNOTSUPP) => None,
        // accept(2) also reports network errors of the new connection, which concern that one only.
        _ => Some(Duration::ZERO),
    }
}
