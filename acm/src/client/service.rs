//! The address of a service, chosen as `ib_acme` and librdmacm choose it.
//!
//! reference: acm, section 2.

use std::fmt;
use std::fs;
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use super::error::ClientError;
use crate::serve::{SocketPaths, TCP_PORT};

/// The address of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Service {
    /// A Unix socket at this path.
    Unix(PathBuf),
    /// A TCP port of a host.
    Tcp {
        /// The name or address of the host.
        host: String,
        /// The port number.
        port: u16,
    },
}

impl Service {
    /// Returns the service that a text names: a path (with a `/`, or the name of a socket in the current
    /// directory), `HOST` or `HOST:PORT`; without a text, the default Unix socket. The default port is that
    /// of the port file, else [`TCP_PORT`].
    ///
    /// ```
    /// use doorbell_acm::client::Service;
    /// use doorbell_acm::serve::SocketPaths;
    /// let of = |text| Service::of(text, &SocketPaths::default()).map(|service| service.to_string());
    /// assert_eq!(of(None)?, "/run/ibacm-unix.sock");
    /// assert_eq!(of(Some("/tmp/acm.sock"))?, "/tmp/acm.sock");
    /// assert_eq!(of(Some("./acm.sock"))?, "./acm.sock");
    /// assert_eq!(of(Some("node1:7000"))?, "node1:7000");
    /// assert_eq!(of(Some("[fe80::1]:7000"))?, "[fe80::1]:7000");
    /// # Ok::<(), doorbell_acm::client::ClientError>(())
    /// ```
    ///
    /// # Errors
    /// When the port is not a number, or the host is missing.
    pub fn of(text: Option<&str>, places: &SocketPaths) -> Result<Self, ClientError> {
        let Some(text) = text else {
            return Ok(Self::Unix(places.socket.clone()));
        };
        // A text with a `/` is no host name, and an existing socket of this name was meant as one.
        if text.contains('/') || is_socket(text) {
            return Ok(Self::Unix(text.into()));
        }
        let (host, port) = split(text);
        let port = match port {
            Some(port) => port.parse().ok().filter(|port| *port != 0),
            None => Some(read_port(&places.port).unwrap_or(TCP_PORT)),
        };
        match (host, port) {
            ("", _) | (_, None) => Err(ClientError::Service {
                given: text.to_owned(),
            }),
            (host, Some(port)) => Ok(Self::Tcp {
                host: host.to_owned(),
                port,
            }),
        }
    }

    /// Returns the service that librdmacm uses: on loopback the port in its port file, else its Unix socket.
    #[must_use]
    pub fn of_librdmacm(places: &SocketPaths) -> Self {
        match read_port(&places.port_alias) {
            Some(port) => Self::Tcp {
                host: "127.0.0.1".to_owned(),
                port,
            },
            None => Self::Unix(places.socket_alias.clone()),
        }
    }
}

impl fmt::Display for Service {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => path.display().fmt(f),
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

fn is_socket(name: &str) -> bool {
    fs::metadata(name).is_ok_and(|found| found.file_type().is_socket())
}

/// Splits host and port. More than one colon without brackets is an IPv6 address.
fn split(text: &str) -> (&str, Option<&str>) {
    if let Some((host, rest)) = text.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return match rest.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if rest.is_empty() => (host, None),
            None => ("", None),
        };
    }
    match text.split_once(':') {
        Some((host, port)) if !port.contains(':') => (host, Some(port)),
        _ => (text, None),
    }
}

/// Returns the port in a port file, if there is one.
fn read_port(path: &Path) -> Option<u16> {
    let text = fs::read_to_string(path).ok()?;
    let port = text.split_whitespace().next()?.parse().ok()?;
    (port != 0).then_some(port)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Service {
        Service::Tcp {
            host: host.to_owned(),
            port,
        }
    }

    #[test]
    fn the_port_is_that_of_the_file_unless_one_is_given() {
        let folder = tempfile::tempdir().unwrap();
        let places = SocketPaths::within(folder.path());
        let of = |text| Service::of(Some(text), &places).unwrap();
        assert_eq!(of("node1"), tcp("node1", 6125));
        fs::write(&places.port, "7001\n").unwrap();
        assert_eq!(of("node1"), tcp("node1", 7001));
        assert_eq!(of("node1:7002"), tcp("node1", 7002));
        assert_eq!(of("fe80::1"), tcp("fe80::1", 7001));
        assert_eq!(of("[fe80::1]"), tcp("fe80::1", 7001));
        fs::write(&places.port, "no port").unwrap();
        assert_eq!(of("node1"), tcp("node1", 6125));
        for bad in ["", ":6125", "node1:", "node1:0", "node1:65536", "[fe80::1]x"] {
            let error = Service::of(Some(bad), &places).unwrap_err();
            assert!(matches!(error, ClientError::Service { .. }), "{bad}");
        }
    }

    #[test]
    fn librdmacm_believes_its_port_file_before_the_socket() {
        let folder = tempfile::tempdir().unwrap();
        let places = SocketPaths::within(folder.path());
        let unix = Service::Unix(places.socket_alias.clone());
        assert_eq!(Service::of_librdmacm(&places), unix);
        fs::write(&places.port_alias, "0\n").unwrap();
        assert_eq!(Service::of_librdmacm(&places), unix);
        fs::write(&places.port_alias, "7001\n").unwrap();
        assert_eq!(Service::of_librdmacm(&places), tcp("127.0.0.1", 7001));
    }
}
