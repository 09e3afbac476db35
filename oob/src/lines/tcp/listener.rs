//! A listener: accepts the connections to one address and passes them on; identification happens elsewhere.

use std::net::{SocketAddr, TcpListener, TcpStream};

use tokio::sync::mpsc::Sender;

use super::line::Note;
use super::socket::{AcceptFailure, NO_ROOM};
use crate::transport::ModuleId;

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
            Err(error) => match AcceptFailure::of(&error) {
                AcceptFailure::NoRoom => tokio::time::sleep(NO_ROOM).await,
                AcceptFailure::Socket => return,
                AcceptFailure::Guest => {}
            },
        }
    }
}
