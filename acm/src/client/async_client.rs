//! Many questions on one connection: whoever asks waits for its own answer, and for nobody else's.
//!
//! ```text
//!   ask(question) ──▶ queue ──▶ writer: tid, open[tid] ──▶ service
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
use crate::ask::Question;
use crate::line::Line;
use crate::status::Status;
use crate::wire::{ANSWER_MAX, BadAnswer, Pieces, Told, request, tid_of, told};

/// Questions that wait to be written, at most; who asks then waits for its turn.
const QUEUE: usize = 64;
/// With so many open, and each time that they have doubled, those whose askers are gone are looked for.
const TIDY: usize = 1024;
/// Between two knocks at a service whose queue is full.
const AGAIN: Duration = Duration::from_millis(10);

/// A connection to a service on which many questions are open at once. Clones share it; the last one closes it.
#[derive(Clone, Debug)]
pub struct Asker {
    questions: mpsc::Sender<(Question, Waiting)>,
    service: Arc<str>,
    limit: Duration,
}

type Heard = Result<Result<Told, Status>, BadAnswer>;
type Waiting = oneshot::Sender<Heard>;

/// Questions that are open, by their number.
#[derive(Clone, Default)]
struct Opened(Arc<Mutex<HashMap<u64, (Question, Waiting)>>>);

impl Asker {
    /// Connects; `limit` is how long this may take, and each question after it. Needs a tokio runtime with I/O and time.
    ///
    /// # Errors
    /// [`ClientError`]: nobody there, no permission, no way to it.
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

    /// The path to an address, as [`super::Client::resolve`].
    ///
    /// # Errors
    /// [`ClientError`].
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
        match self.ask(question).await? {
            Told::Path { path, source } => Ok(Route { path: *path, source }),
            _ => Err(self.wrong(BadAnswer::Another)),
        }
    }

    /// Any question.
    ///
    /// # Errors
    /// [`ClientError`]. One that is late or given up disturbs no other.
    pub async fn ask(&self, question: Question) -> Result<Told, ClientError> {
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

async fn line_to(service: &Service) -> io::Result<Line> {
    match service {
        Service::Unix(path) => loop {
            match UnixStream::connect(path).await {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(AGAIN).await,
                stream => return stream.map(Line::Unix),
            }
        },
        Service::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            Ok(Line::Tcp(stream))
        }
    }
}

/// Until the last asker is gone, or the service is. Those who still wait then see their channel close.
async fn converse(line: Line, queue: mpsc::Receiver<(Question, Waiting)>) {
    let opened = Opened::default();
    select! {
        biased;
        () = write(&line, queue, opened.clone()) => {}
        () = read(&line, opened) => {}
    }
}

async fn write(line: &Line, mut queue: mpsc::Receiver<(Question, Waiting)>, opened: Opened) {
    for tid in 1.. {
        let Some((question, waiting)) = queue.recv().await else {
            return;
        };
        if waiting.is_closed() {
            continue;
        }
        let bytes = request(&question, tid);
        opened.put(tid, question, waiting);
        if line.write_all(&bytes).await.is_err() {
            return;
        }
    }
}

async fn read(line: &Line, opened: Opened) {
    let (mut pieces, mut chunk) = (Pieces::new(ANSWER_MAX), vec![0; CHUNK]);
    loop {
        match line.read(&mut chunk).await {
            Ok(0) | Err(_) => return,
            Ok(got) => pieces.take(&chunk[..got]),
        }
        let mut hear = || -> Result<(), BadAnswer> {
            while let Some(answer) = pieces.next()? {
                opened.hear(tid_of(&answer)?, &answer);
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

    /// An answer; one that nobody waits for is passed over.
    fn hear(&self, tid: u64, answer: &[u8]) {
        if let Some((question, waiting)) = self.with(|open| open.remove(&tid)) {
            let _ = waiting.send(told(&question, tid, answer));
        }
    }

    /// Tells everybody that nothing else can be understood.
    fn end(&self, reason: BadAnswer) {
        for (_, (_, waiting)) in self.with(std::mem::take) {
            let _ = waiting.send(Err(reason));
        }
    }
}
