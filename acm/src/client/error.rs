//! Errors of a client.

use std::io;
use std::time::Duration;

use super::service::Service;
use crate::address::is_of_a_link;
use crate::query::Question;
use crate::serve::SOCKET_MAX;
use crate::status::Status;
use crate::wire::BadAnswer;

/// Why a service could not be queried, or did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The name of the service is invalid.
    #[error("`{given}` is not the address of a service: give the path of a Unix socket, HOST or HOST:PORT")]
    Service {
        /// The name that was given.
        given: String,
    },
    /// No process listens at the service's address.
    #[error("no service listens at {service} ({source}): start it there, or name the one that runs")]
    NotRunning {
        /// The address of the service.
        service: String,
        /// The system's error.
        source: io::Error,
    },
    /// This user may not connect to it.
    #[error("this user may not connect to the service at {service} ({source}): check the mode of its socket")]
    Permission {
        /// The address of the service.
        service: String,
        /// The system's error.
        source: io::Error,
    },
    /// The connection failed.
    #[error("cannot reach the service at {service}: {source}; {remedy}")]
    Unreachable {
        /// The address of the service.
        service: String,
        /// The system's error.
        source: io::Error,
        /// The remedy to propose.
        remedy: &'static str,
    },
    /// The path is too long for a Unix socket.
    #[error("`{service}` has {} bytes, but the path of a Unix socket has at most {SOCKET_MAX}: name another one", service.len())]
    TooLong {
        /// The path that was given.
        service: String,
    },
    /// No answer came in time.
    #[error(
        "the service at {service} did not answer within {:.1} s: check its output, or allow more time",
        waited.as_secs_f64()
    )]
    Late {
        /// The address of the service.
        service: String,
        /// The time waited.
        waited: Duration,
    },
    /// The service answered with an error status.
    #[error("the service at {service} refuses: {what}; {remedy}")]
    Refused {
        /// The address of the service.
        service: String,
        /// The status it answered with.
        status: Status,
        /// The status in words that fit the query.
        what: &'static str,
        /// The remedy to propose.
        remedy: &'static str,
    },
    /// The answer is invalid.
    #[error("invalid answer from the service at {service}: {reason}; check that it speaks ibacm's protocol")]
    Wrong {
        /// The address of the service.
        service: String,
        /// Why the answer is invalid.
        reason: BadAnswer,
    },
    /// The service closed the connection.
    #[error("the service at {service} closed the connection: check its output, and try again")]
    Closed {
        /// The address of the service.
        service: String,
    },
    /// The connection broke.
    #[error("the connection to the service at {service} broke: {source}; try again")]
    Broken {
        /// The address of the service.
        service: String,
        /// The system's error.
        source: io::Error,
    },
}

impl ClientError {
    /// Returns the status, if the service answered with one.
    #[must_use]
    pub const fn status(&self) -> Option<Status> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Builds the error of an answer with a status, in words that fit the query.
    pub(super) fn refused(service: String, status: Status, question: &Question) -> Self {
        let (what, remedy) = meant(status, question).unwrap_or((status.words(), remedy(status)));
        Self::Refused {
            service,
            status,
            what,
            remedy,
        }
    }

    /// Builds the error of a failed connection.
    pub(super) fn unconnected(service: &Service, source: io::Error) -> Self {
        use io::ErrorKind::{ConnectionRefused, NotFound, PermissionDenied};
        let is_file = matches!(service, Service::Unix(_));
        let service = service.to_string();
        match source.kind() {
            _ if is_file && service.len() > SOCKET_MAX => Self::TooLong { service },
            NotFound | ConnectionRefused => Self::NotRunning { service, source },
            PermissionDenied => Self::Permission { service, source },
            _ => Self::Unreachable {
                service,
                source,
                remedy: if is_file {
                    "check with `ls -l` what is there"
                } else {
                    "check the host's name and the network; the path of a socket contains a `/`, as in `./acm.sock`"
                },
            },
        }
    }
}

/// Returns what a status means for a path query without a source, and the remedy.
fn meant(status: Status, question: &Question) -> Option<(&'static str, &'static str)> {
    let Question::Resolve {
        source: None,
        destination,
        ..
    } = question
    else {
        return None;
    };
    let ip = destination.ip()?;
    match status {
        Status::DestinationType if ip.is_multicast() || ip.is_unspecified() => {
            Some(("it is not a host address", "name the address of one host"))
        }
        Status::SourceAddress if is_of_a_link(ip) => Some((
            "the address is link-local, and several interfaces could lead to it",
            "append the interface, as in `fe80::1%eth0`, or a source",
        )),
        Status::SourceAddress => Some((
            "it does not serve the source address that the kernel would use",
            "list the endpoints (doorbell acm endpoints), and give one as the source",
        )),
        Status::NotConnected if is_of_a_link(ip) => Some((
            "it serves no interface with a link-local address",
            "give the service the interface (--nic), and check that it has an fe80:: address",
        )),
        _ => None,
    }
}

const fn remedy(status: Status) -> &'static str {
    match status {
        Status::NoMemory => "try again when it is less busy",
        Status::Invalid => "check the index, the port and the path of the query",
        Status::NoData => "query again without restricting it to the cache",
        Status::NotConnected => {
            "check that the interface towards it is up, and that the service uses it (--nic)"
        }
        Status::TimedOut => {
            "check that a service runs there and serves an interface of this link (--nic); `doorbell acm watch --once` there \
             shows what it received"
        }
        Status::SourceAddress => "give one of this host's addresses, or none",
        Status::SourceType => "give a source by name, IP address, GID or LID",
        Status::DestinationAddress => "check the destination and the routes to it (ip route get ADDRESS)",
        Status::DestinationType => "give a destination, and a source unless it is an IP address",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_explained_by_its_query() {
        let said = |status, source: Option<&str>, destination: &str| {
            let ip = |text: &str| text.parse::<std::net::IpAddr>().unwrap().into();
            let question = Question::Resolve {
                source: source.map(ip),
                destination: ip(destination),
                no_delay: false,
            };
            ClientError::refused("/s".to_owned(), status, &question).to_string()
        };
        use Status::{DestinationAddress, DestinationType, SourceAddress, TimedOut};
        for (status, source, destination, words) in [
            (
                SourceAddress,
                Some("10.0.0.9"),
                "10.0.0.2",
                "the source is not an address of this host",
            ),
            (
                SourceAddress,
                None,
                "fe80::1",
                "append the interface, as in `fe80::1%eth0`",
            ),
            (
                SourceAddress,
                None,
                "10.0.0.2",
                "does not serve the source address",
            ),
            (DestinationAddress, None, "10.0.0.2", "ip route get"),
            (DestinationType, None, "224.0.0.1", "not a host address"),
            (DestinationType, None, "::", "not a host address"),
        ] {
            let said = said(status, source, destination);
            assert!(said.contains(words), "{said}");
        }
        let late = said(TimedOut, None, "10.0.0.2");
        assert!(!late.contains("partition") && !late.contains("key"), "{late}");
    }

    #[test]
    fn hints_fit_what_was_named() {
        let said = |service, kind: io::ErrorKind| ClientError::unconnected(&service, kind.into()).to_string();
        let host = Service::Tcp {
            host: "s1.sock".to_owned(),
            port: 6125,
        };
        assert!(said(host, io::ErrorKind::Other).contains("`./acm.sock`"));
        let file = Service::Unix("/tmp/x".into());
        let file = said(file, io::ErrorKind::Other);
        assert!(!file.contains("network"), "{file}");
        let long = Service::Unix(format!("/tmp/{}", "x".repeat(200)).into());
        let long = said(long, io::ErrorKind::InvalidInput);
        assert!(
            long.contains("has 205 bytes") && long.contains("at most 107"),
            "{long}"
        );
    }
}
