//! The asynchronous client: many queries are open on one connection, and each caller waits for its own answer
//! only.
//!
//! ```text
//!   query(…) ──────▶ queue ──▶ writer: tid, open[tid] ──▶ service
//!        ▲                                                   │
//!        └───────────────── open[tid] ◀── reader: tid ◀──────┘
//! ```

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::net::{TcpStream, UnixStream};
use tokio::select;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::error::ClientError;
use super::service::Service;
use super::{CHUNK, Route};
use crate::address::Address;
use crate::query::Question;
use crate::status::Status;
use crate::stream::Stream;
use crate::wire::{ANSWER_MAX, BadAnswer, Decoder, Response, read_response, tid_of, write_question};

/// Maximum number of queries that wait to be written; further callers wait.
const QUEUE: usize = 64;
/// The number of open queries from which on, and each time their number has doubled, those of cancelled
/// callers are removed.
const TIDY: usize = 1024;
/// Pause between two attempts to connect to a service whose backlog is full.
const AGAIN: Duration = Duration::from_millis(10);

/// A connection to a service with many queries open at once. Clones share it; dropping the last one closes
/// it.
#[derive(Clone, Debug)]
pub struct AsyncClient {
    questions: mpsc::Sender<(Question, Waiting)>,
    service: Arc<str>,
    limit: Duration,
}

type Heard = Result<Result<Response, Status>, BadAnswer>;
type Waiting = oneshot::Sender<Heard>;

/// The open queries, by their transaction id.
#[derive(Clone, Default)]
struct Opened(Arc<Mutex<HashMap<u64, (Question, Waiting)>>>);

impl AsyncClient {
    /// Connects; `limit` bounds connecting, and each query. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// [`ClientError`], when nothing listens, access is denied, or there is no route.
    pub async fn connect(service: &Service, limit: Duration) -> Result<Self, ClientError> {
        let name = service.to_string();
        let line = match timeout(limit, line_to(service)).await {
            Ok(line) => line.map_err(|source| ClientError::unconnected(service, source))?,
            Err(_) => {
                return Err(ClientError::Late {
                    service: name,
                    waited: limit,
                });
            }
        };
        let (questions, queue) = mpsc::channel(QUEUE);
        tokio::spawn(converse(line, queue));
        Ok(Self {
            questions,
            service: name.into(),
            limit,
        })
    }

    /// Resolves the path to an address, like [`super::Client::resolve`].
    ///
    /// # Errors
    /// [`ClientError`], when the service refuses or does not answer in time.
    pub async fn resolve(
        &self,
        source: Option<Address>,
        destination: Address,
        no_delay: bool,
    ) -> Result<Route, ClientError> {
        let question = Question::Resolve {
            source,
            destination,
            no_delay,
        };
        match self.query(question).await? {
            Response::Path { path, source } => Ok(Route { path: *path, source }),
            _ => Err(self.wrong(BadAnswer::Another)),
        }
    }

    /// Sends any query and waits for its answer.
    ///
    /// # Errors
    /// [`ClientError`]. A query that is late or cancelled does not disturb others.
    pub async fn query(&self, question: Question) -> Result<Response, ClientError> {
        let service = || String::from(&*self.service);
        let heard = async {
            let (waiting, answer) = oneshot::channel();
            self.questions.send((question.clone(), waiting)).await.ok()?;
            answer.await.ok()
        };
        match timeout(self.limit, heard).await {
            Ok(Some(Ok(Ok(told)))) => Ok(told),
            Ok(Some(Ok(Err(status)))) => Err(ClientError::refused(service(), status, &question)),
            Ok(Some(Err(reason))) => Err(self.wrong(reason)),
            Ok(None) => Err(ClientError::Closed { service: service() }),
            Err(_) => Err(ClientError::Late {
                service: service(),
                waited: self.limit,
            }),
        }
    }

    fn wrong(&self, reason: BadAnswer) -> ClientError {
        ClientError::Wrong {
            service: String::from(&*self.service),
            reason,
        }
    }
}

async fn line_to(service: &Service) -> io::Result<Stream> {
    match service {
        Service::Unix(path) => loop {
            match UnixStream::connect(path).await {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(AGAIN).await,
                stream => return stream.map(Stream::Unix),
            }
        },
        Service::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            Ok(Stream::Tcp(stream))
        }
    }
}

/// Runs the connection until the last client is dropped or the service closes it. Then the channels of those
/// that wait are closed.
async fn converse(line: Stream, queue: mpsc::Receiver<(Question, Waiting)>) {
    let opened = Opened::default();
    select! {
        biased;
        () = write(&line, queue, opened.clone()) => {}
        () = read(&line, opened) => {}
    }
}

async fn write(line: &Stream, mut queue: mpsc::Receiver<(Question, Waiting)>, opened: Opened) {
    for tid in 1.. {
        let Some((question, waiting)) = queue.recv().await else {
            return;
        };
        if waiting.is_closed() {
            continue;
        }
        let bytes = write_question(&question, tid);
        opened.put(tid, question, waiting);
        if line.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn read(line: &Stream, opened: Opened) {
    let (mut decoder, mut chunk) = (Decoder::new(ANSWER_MAX), vec![0; CHUNK]);
    loop {
        match line.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(got) => decoder.push(&chunk[..got]),
        }
        let mut hear = || -> Result<(), BadAnswer> {
            while let Some(answer) = decoder.next()? {
                opened.on_answer(tid_of(&answer)?, &answer);
            }
            Ok(())
        };
        if let Err(reason) = hear() {
            return opened.end(reason);
        }
    }
}

impl Opened {
    fn with<T>(&self, job: impl FnOnce(&mut HashMap<u64, (Question, Waiting)>) -> T) -> T {
        job(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn put(&self, tid: u64, question: Question, waiting: Waiting) {
        self.with(|open| {
            if open.len() >= TIDY && open.len().is_power_of_two() {
                open.retain(|_, (_, waiting)| !waiting.is_closed());
            }
            open.insert(tid, (question, waiting));
        });
    }

    /// Passes an answer to its caller; ignores it if there is none.
    fn on_answer(&self, tid: u64, answer: &[u8]) {
        if let Some((question, waiting)) = self.with(|open| open.remove(&tid)) {
            let _ = waiting.send(read_response(&question, tid, answer));
        }
    }

    /// Fails all open queries when the stream cannot be parsed any further.
    fn end(&self, reason: BadAnswer) {
        for (_, (_, waiting)) in self.with(std::mem::take) {
            let _ = waiting.send(Err(reason));
        }
    }
}
