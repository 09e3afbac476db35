//! The service's status socket: a client reads the state as JSON, or reports a path that failed.
//!
//! ```text
//!   state\n              ──►  one line of JSON
//!   failed ADDRESS\n     ──►  done\n             the path to it was of no use: it is resolved again
//! ```
//!
//! It shows nothing that another process of this host could not learn by querying, and a report costs one
//! message: the resolver queries again. The number of clients and the length of a line are bounded, and all
//! clients together get a hundred lines a second.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::task::spawn_local;
use tokio::time::{Instant, sleep, sleep_until, timeout};

use super::ServiceError;
use super::actor::Message;
use crate::address::{Address, Name, ScopedIp};
use crate::serve::CreatedFiles;
use crate::stream::Stream;

/// Maximum number of simultaneous clients.
const CLIENTS: usize = 32;
/// Maximum bytes of a request line.
const LINE: usize = 128;
/// How long a client may take to accept an answer.
const STUCK: Duration = Duration::from_secs(5);
/// How long a client may be idle before it is disconnected.
const SILENT: Duration = Duration::from_secs(60);
/// Pause between two lines of all clients, so that they take only a small part of the service's time.
const PAUSE: Duration = Duration::from_millis(10);

/// When the next line may be processed, from whichever client.
type Turn = Rc<Cell<Instant>>;

/// Opens the status socket at `path`.
pub(super) fn open(
    path: &Path,
    made: &mut CreatedFiles,
) -> Result<std::os::unix::net::UnixListener, ServiceError> {
    let listener = crate::serve::socket(path, 0o666, made)?;
    listener.set_nonblocking(true).map_err(ServiceError::Runtime)?;
    Ok(listener)
}

/// Serves status clients until the task is dropped.
pub(super) async fn serve(listener: UnixListener, actor: mpsc::UnboundedSender<Message>) {
    let clients = Rc::new(Cell::new(0));
    let turn: Turn = Rc::new(Cell::new(Instant::now()));
    loop {
        match listener.accept().await {
            Ok((stream, _)) if clients.get() < CLIENTS => {
                clients.set(clients.get() + 1);
                let (clients, turn, actor) = (Rc::clone(&clients), Rc::clone(&turn), actor.clone());
                spawn_local(async move {
                    let _ = serve_client(stream, &turn, actor).await;
                    clients.set(clients.get() - 1);
                });
            }
            // Too many clients: close this one at once.
            Ok(_) => {}
            Err(_) => sleep(STUCK).await,
        }
    }
}

async fn serve_client(
    stream: UnixStream,
    turn: &Turn,
    actor: mpsc::UnboundedSender<Message>,
) -> std::io::Result<()> {
    let line = Stream::Unix(stream);
    let mut held = Vec::new();
    loop {
        let mut bytes = [0; LINE];
        let Ok(read) = timeout(SILENT, line.read(&mut bytes)).await else {
            return Ok(());
        };
        let read = read?;
        if read == 0 {
            return Ok(());
        }
        held.extend_from_slice(&bytes[..read]);
        while let Some(end) = held.iter().position(|byte| *byte == b'\n') {
            let words: Vec<u8> = held.drain(..=end).collect();
            if words.len() > LINE {
                return Ok(());
            }
            let now = turn.get().max(Instant::now());
            turn.set(now + PAUSE);
            sleep_until(now).await;
            let answer = answer(words.trim_ascii(), &actor).await;
            match timeout(STUCK, line.write_all(answer.as_bytes())).await {
                Ok(written) => written?,
                Err(_) => return Ok(()),
            }
        }
        if held.len() > LINE {
            return Ok(());
        }
    }
}

async fn answer(words: &[u8], actor: &mpsc::UnboundedSender<Message>) -> String {
    let words = String::from_utf8_lossy(words);
    match words.split_once(' ').unwrap_or((&words, "")) {
        ("state", "") => {
            let (tell, told) = oneshot::channel();
            let _ = actor.send(Message::View(tell));
            told.await.unwrap_or_default()
        }
        ("failed", address) => match address_of(address) {
            Some(address) => {
                let _ = actor.send(Message::Failed(address));
                "done\n".to_owned()
            }
            None => "no address; write `failed ADDRESS`\n".to_owned(),
        },
        _ => "unknown; write `state` or `failed ADDRESS`\n".to_owned(),
    }
}

fn address_of(text: &str) -> Option<Address> {
    // An address without a zone matches on every interface.
    match ScopedIp::read(text).ok()? {
        Some(found) => Some(found.ip.into()),
        None => Name::new(text).ok().map(Address::Name),
    }
}
