//! A connection, whichever socket it came through.

use std::io;

/// A connection.
#[derive(Debug)]
pub(crate) enum Line {
    Unix(tokio::net::UnixStream),
    Tcp(tokio::net::TcpStream),
}

/// Waits until it can be done, and does it once.
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

impl Line {
    /// Some bytes; none at the end.
    pub(crate) async fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => once!(stream, readable, stream.try_read(bytes)),
            Self::Tcp(stream) => once!(stream, readable, stream.try_read(bytes)),
        }
    }

    /// Writes all of it: in one write, where the system has room for it.
    pub(crate) async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let written = self.write(bytes).await?;
            bytes = &bytes[written..];
        }
        Ok(())
    }

    /// Writes as much as the system takes.
    async fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Unix(stream) => once!(stream, writable, stream.try_write(bytes)),
            Self::Tcp(stream) => once!(stream, writable, stream.try_write(bytes)),
        }
    }
}
