//! Clients of a service: this project's or the original `ibacm`, over its Unix socket or TCP.
//!
//! * [`Client`] sends one query at a time and waits for the answer, with a deadline.
//! * [`AsyncClient`] has many queries open on one connection, in any tokio runtime; [`query_all`] brings its
//!   own runtime.
//! * [`Service`] is the address of a service, by the rules of the original clients.
//!
//! Answers are as untrusted as queries are: their size is bounded, and their content is checked.
//!
//! reference: acm, sections 2 to 7.

mod async_client;
mod batch;
mod error;
mod service;

use std::io::{self, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::path::Path as FilePath;
use std::time::{Duration, Instant};

use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use crate::address::Address;
use crate::path::Path;
use crate::query::{CounterScope, Counters, Question};
use crate::status::Status;
use crate::wire::{
    ANSWER_MAX, BadAnswer, Decoder, EndpointInfo, Response, read_response, tid_of, write_question,
};

pub use async_client::AsyncClient;
pub use batch::{query_all, query_all_within};
pub use error::ClientError;
pub use service::Service;

/// Bytes read at once.
const CHUNK: usize = 4096;

/// A connection to a service, for one query at a time.
///
/// ```no_run
/// use std::time::Duration;
/// use doorbell_acm::address::Address;
/// use doorbell_acm::client::{Client, Service};
/// use doorbell_acm::serve::SocketPaths;
/// let service = Service::of(None, &SocketPaths::default())?;
/// let mut client = Client::connect(&service, Duration::from_secs(10))?;
/// let route = client.resolve(None, Address::V4([10, 0, 0, 2].into()), false)?;
/// println!("{}", route.path.dgid);
/// # Ok::<(), doorbell_acm::client::ClientError>(())
/// ```
#[derive(Debug)]
pub struct Client {
    stream: Stream,
    service: String,
    limit: Duration,
    decoder: Decoder,
    tid: u64,
}

/// The result of resolving an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The path to the address.
    pub path: Path,
    /// The source, if the service chose it.
    pub source: Option<Address>,
}

impl Client {
    /// Connects; `limit` bounds connecting, and each query.
    ///
    /// # Errors
    /// [`ClientError`], when nothing listens, access is denied, or there is no route.
    pub fn connect(service: &Service, limit: Duration) -> Result<Self, ClientError> {
        let stream = match service {
            Service::Unix(path) => connect_unix(path, limit),
            Service::Tcp { host, port } => connect_tcp(host, *port, limit),
        };
        Ok(Self {
            stream: stream.map_err(|source| ClientError::unconnected(service, source))?,
            service: service.to_string(),
            limit,
            decoder: Decoder::new(ANSWER_MAX),
            tid: 0,
        })
    }

    /// Resolves the path to an address, from `source` if given. With `no_delay`, only the cache is consulted.
    ///
    /// # Errors
    /// [`ClientError`], when the service refuses or does not answer in time.
    pub fn resolve(
        &mut self,
        source: Option<Address>,
        destination: Address,
        no_delay: bool,
    ) -> Result<Route, ClientError> {
        let question = Question::Resolve {
            source,
            destination,
            no_delay,
        };
        self.route(&question)
    }

    /// Completes a path, of which at least the destination's LID or GID is given. With `verify`, the service
    /// queries the authority for the path instead of its cache.
    ///
    /// # Errors
    /// [`ClientError`], when the service refuses or does not answer in time.
    pub fn path(&mut self, path: &Path, verify: bool) -> Result<Path, ClientError> {
        let path = path.clone();
        self.route(&Question::Path { path, verify })
            .map(|route| route.path)
    }

    /// Reads counters.
    ///
    /// # Errors
    /// [`ClientError`]; [`Status::SourceAddress`] if there is no such endpoint.
    pub fn counters(&mut self, scope: CounterScope) -> Result<Counters, ClientError> {
        match self.query(&Question::Counters(scope))? {
            Response::Counters(counters) => Ok(counters),
            _ => Err(self.wrong(BadAnswer::Another)),
        }
    }

    /// Reads one endpoint: `index` counts from 1 among those with this port.
    ///
    /// # Errors
    /// [`ClientError`]; [`Status::Invalid`] if there is no such endpoint.
    pub fn endpoint(&mut self, port: u8, index: u8) -> Result<EndpointInfo, ClientError> {
        self.endpoint_until(port, index, Instant::now() + self.limit)
    }

    /// Reads all endpoints, port by port. One limit holds for all the queries together.
    ///
    /// # Errors
    /// [`ClientError`], when the service refuses or does not answer in time.
    pub fn endpoints(&mut self) -> Result<Vec<EndpointInfo>, ClientError> {
        let until = Instant::now() + self.limit;
        let mut all: Vec<EndpointInfo> = Vec::new();
        let mut ports = u8::MAX;
        let mut port = 1;
        loop {
            for index in 1..=u8::MAX {
                match self.endpoint_until(port, index, until) {
                    Ok(report) => {
                        ports = report.ports;
                        all.push(report);
                    }
                    Err(error) if error.status() == Some(Status::Invalid) => break,
                    Err(error) => return Err(error),
                }
            }
            if port >= ports {
                return Ok(all);
            }
            port += 1;
        }
    }

    /// Sends any query and waits for its answer.
    ///
    /// # Errors
    /// [`ClientError`]. After [`ClientError::Late`] further queries are possible: a late answer is ignored.
    pub fn query(&mut self, question: &Question) -> Result<Response, ClientError> {
        self.query_until(question, Instant::now() + self.limit)
    }

    fn route(&mut self, question: &Question) -> Result<Route, ClientError> {
        match self.query(question)? {
            Response::Path { path, source } => Ok(Route { path: *path, source }),
            _ => Err(self.wrong(BadAnswer::Another)),
        }
    }

    fn endpoint_until(&mut self, port: u8, index: u8, until: Instant) -> Result<EndpointInfo, ClientError> {
        match self.query_until(&Question::Endpoint { port, index }, until)? {
            Response::Endpoint(report) => Ok(*report),
            _ => Err(self.wrong(BadAnswer::Another)),
        }
    }

    fn query_until(&mut self, question: &Question, until: Instant) -> Result<Response, ClientError> {
        self.tid += 1;
        let sent = self.stream.send(&write_question(question, self.tid), until);
        sent.map_err(|error| self.failed(error))?;
        loop {
            while let Some(answer) = self.decoder.next().map_err(|error| self.wrong(error.into()))? {
                let tid = tid_of(&answer).map_err(|error| self.wrong(error))?;
                // The late answer to a query that was given up.
                if tid < self.tid {
                    continue;
                }
                return match read_response(question, self.tid, &answer) {
                    Ok(Ok(told)) => Ok(told),
                    Ok(Err(status)) => Err(ClientError::refused(self.service.clone(), status, question)),
                    Err(error) => Err(self.wrong(error)),
                };
            }
            let mut chunk = [0; CHUNK];
            match self.stream.receive(&mut chunk, until) {
                Ok(0) => {
                    return Err(ClientError::Closed {
                        service: self.service.clone(),
                    });
                }
                Ok(got) => self.decoder.push(&chunk[..got]),
                Err(error) => return Err(self.failed(error)),
            }
        }
    }

    fn wrong(&self, reason: BadAnswer) -> ClientError {
        ClientError::Wrong {
            service: self.service.clone(),
            reason,
        }
    }

    fn failed(&self, source: io::Error) -> ClientError {
        let service = self.service.clone();
        match source.kind() {
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => ClientError::Late {
                service,
                waited: self.limit,
            },
            io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => ClientError::Closed { service },
            _ => ClientError::Broken { service, source },
        }
    }
}

#[derive(Debug)]
enum Stream {
    Unix(UnixStream),
    Tcp(TcpStream),
}

impl Stream {
    /// Writes all bytes before the deadline.
    fn send(&mut self, mut bytes: &[u8], until: Instant) -> io::Result<()> {
        while !bytes.is_empty() {
            let left = Some(left(until)?);
            let sent = match self {
                Self::Unix(stream) => stream.set_write_timeout(left).and_then(|()| stream.write(bytes)),
                Self::Tcp(stream) => stream.set_write_timeout(left).and_then(|()| stream.write(bytes)),
            };
            match sent {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                sent => bytes = &bytes[sent?..],
            }
        }
        Ok(())
    }

    /// Reads some bytes before the deadline; 0 at the end of the stream.
    fn receive(&mut self, bytes: &mut [u8], until: Instant) -> io::Result<usize> {
        loop {
            let left = Some(left(until)?);
            let got = match self {
                Self::Unix(stream) => stream.set_read_timeout(left).and_then(|()| stream.read(bytes)),
                Self::Tcp(stream) => stream.set_read_timeout(left).and_then(|()| stream.read(bytes)),
            };
            match got {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                got => return got,
            }
        }
    }
}

fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() {
        Err(io::ErrorKind::TimedOut.into())
    } else {
        Ok(left)
    }
}

/// The send timeout bounds the wait for a service whose backlog is full.
fn connect_unix(path: &FilePath, limit: Duration) -> io::Result<Stream> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    set_socket_timeout(&socket, Timeout::Send, Some(limit))?;
    connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(Stream::Unix(socket.into()))
}

fn connect_tcp(host: &str, port: u16, limit: Duration) -> io::Result<Stream> {
    let until = Instant::now() + limit;
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in (host, port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, left(until)?) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(Stream::Tcp(stream));
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}
