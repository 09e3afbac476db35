//! Why a service was not asked, or did not answer.

use std::io;
use std::time::Duration;

use super::service::Service;
use crate::address::is_of_a_link;
use crate::ask::Question;
use crate::serve::SOCKET_MAX;
use crate::status::Status;
use crate::wire::BadAnswer;

/// Why a service was not asked, or did not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// What was written is no service.
    #[error("`{given}` is no service: give the path of a Unix socket, HOST or HOST:PORT")]
    Service {
        /// What was written.
        given: String,
    },
    /// Nobody is there.
    #[error("no service runs at {service} ({source}): start it there, or name the one that runs")]
    NotRunning {
        /// Where.
        service: String,
        /// The system's error.
        source: io::Error,
    },
    /// It is there, and not for this user.
    #[error("this user may not ask the service at {service} ({source}): look at the mode of its socket")]
    Permission {
        /// Where.
        service: String,
        /// The system's error.
        source: io::Error,
    },
    /// It cannot be reached.
    #[error("could not reach the service at {service}: {source}; {remedy}")]
    Unreachable {
        /// Where.
        service: String,
        /// The system's error.
        source: io::Error,
        /// What can be done.
        remedy: &'static str,
    },
    /// No Unix socket can have this name.
    #[error("`{service}` has {} bytes, and the name of a Unix socket has at most {SOCKET_MAX}: name another one", service.len())]
    TooLong {
        /// Where.
        service: String,
    },
    /// No answer in time.
    #[error(
        "the service at {service} did not answer within {:.1} s: look at its output, or allow it more time",
        waited.as_secs_f64()
    )]
    Late {
        /// Where.
        service: String,
        /// How long was waited.
        waited: Duration,
    },
    /// It refuses.
    #[error("the service at {service} refuses: {what}; {remedy}")]
    Refused {
        /// Where.
        service: String,
        /// Why.
        status: Status,
        /// The same in words, as it is meant of this question.
        what: &'static str,
        /// What can be done.
        remedy: &'static str,
    },
    /// What it says is no answer.
    #[error(
        "what the service at {service} says is no answer: {reason}; check that it is one for ibacm's clients"
    )]
    Wrong {
        /// Where.
        service: String,
        /// Why.
        reason: BadAnswer,
    },
    /// It went.
    #[error("the service at {service} ended the connection: look at its output, and ask again")]
    Closed {
        /// Where.
        service: String,
    },
    /// The connection broke.
    #[error("the connection to the service at {service} broke: {source}; ask again")]
    Broken {
        /// Where.
        service: String,
        /// The system's error.
        source: io::Error,
    },
}

impl ClientError {
    /// The status, where the service refused.
    #[must_use]
    pub const fn status(&self) -> Option<Status> {
        match self {
            Self::Refused { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// A refusal, in words that fit the question.
    pub(super) fn refused(service: String, status: Status, question: &Question) -> Self {
        let (what, remedy) = meant(status, question).unwrap_or((status.words(), remedy(status)));
        Self::Refused {
            service,
            status,
            what,
            remedy,
        }
    }

    /// Why a connection could not be made.
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
                    "see with `ls -l` what is there"
                } else {
                    "check the host's name and the network; the path of a socket has a `/` in it, as in `./acm.sock`"
                },
            },
        }
    }
}

/// What a status means of a question for a path that came without a source.
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
            Some(("it is no host's address", "name the address of one host"))
        }
        Status::SourceAddress if is_of_a_link(ip) => Some((
            "several interfaces could lead to this link's own address",
            "name the interface behind it, as in `fe80::1%eth0`, or a source",
        )),
        Status::SourceAddress => Some((
            "the address that it would talk from is none that it serves",
            "see which there are (doorbell acm endpoints), and name one as the source",
        )),
        Status::NotConnected if is_of_a_link(ip) => Some((
            "no interface with an address of its link is served",
            "name the interface for the service (--nic), and see that it has an fe80:: address",
        )),
        _ => None,
    }
}

const fn remedy(status: Status) -> &'static str {
    match status {
        Status::NoMemory => "ask again when it has less to do",
        Status::Invalid => "check the question: the index, the port, the path",
        Status::NoData => "ask again, without asking for what is known only",
        Status::NotConnected => {
            "see that the interface that leads there is up, and that the service is to ask by it (--nic)"
        }
        Status::TimedOut => {
            "see that a service runs there and serves an interface of this link (--nic); `doorbell acm watch --once` there \
             shows what it heard"
        }
        Status::SourceAddress => "name one of this host's addresses, or none",
        Status::SourceType => "name a source by name, IP address, GID or LID",
        Status::DestinationAddress => "check the destination, and the routes to it (ip route get ADDRESS)",
        Status::DestinationType => "name a destination, and a source where it is no IP address",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_asked_says_what_a_status_means() {
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
                "the source is no address of this host",
            ),
            (
                SourceAddress,
                None,
                "fe80::1",
                "name the interface behind it, as in `fe80::1%eth0`",
            ),
            (
                SourceAddress,
                None,
                "10.0.0.2",
                "talk from is none that it serves",
            ),
            (DestinationAddress, None, "10.0.0.2", "ip route get"),
            (DestinationType, None, "224.0.0.1", "no host's address"),
            (DestinationType, None, "::", "no host's address"),
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
