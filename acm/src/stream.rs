//! A client connection over a Unix or TCP socket.

use std::io;

/// A connection over either kind of socket.
#[derive(Debug)]
pub(crate) enum Stream {
    Unix(tokio::net::UnixStream),
    Tcp(tokio::net::TcpStream),
}

/// Waits until the socket is ready, and tries once.
macro_rules! once {
    ($stream:expr, $ready:ident, $attempt:expr) => {
        loop {
            $stream.$ready().await?;
            match $attempt {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
        }
    };
}

impl Stream {
    /// Reads some bytes; 0 at the end of the stream.
    pub(crate) async fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => once!(stream, readable, stream.try_read(bytes)),
            Self::Tcp(stream) => once!(stream, readable, stream.try_read(bytes)),
        }
    }

    /// Writes all bytes, with one call if the socket buffer has room.
    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.write(bytes).await?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Writes as many bytes as the system accepts.
    async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => once!(stream, writable, stream.try_write(bytes)),
            Self::Tcp(stream) => once!(stream, writable, stream.try_write(bytes)),
        }
    }
}
