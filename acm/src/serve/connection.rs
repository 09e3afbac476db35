//! One client's connection, from its first byte to its last.
//!
//! The reader (bytes, messages, queries) pauses while the client has too many queries open; the writer
//! (answers, as they come) closes the connection if the client does not read them. The two depend on each
//! other only at these limits.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::select;
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::{Instant, timeout, timeout_at};

use super::Backend;
use super::counters::{Count, ServerCounters};
use super::reply::{Outbox, Outgoing, Reply};
use super::settings::Limits;
use crate::stream::Stream;
use crate::wire::{BadMessage, Decoder, QUESTION_MAX, Rejected, read_question, write_answer};

/// Bytes read at once.
const CHUNK: usize = 1024;

/// How the reader or the writer ended.
enum End {
    /// Regularly: no more queries, or no more answers.
    Done,
    /// The connection is closed, for this reason.
    Left(Count),
}

/// Serves a client until it disconnects or has to be disconnected.
pub(super) async fn serve_client<B: Backend>(
    line: &Stream,
    backend: &B,
    limits: &Limits,
    served: &Arc<ServerCounters>,
) {
    let (to, from) = unbounded_channel();
    let outbox = Outbox {
        to,
        bytes: Arc::default(),
        most: limits.unread,
    };
    let bytes = Arc::clone(&outbox.bytes);
    let room = Arc::new(Semaphore::new(limits.questions.max(1)));
    let reader = Reader {
        line,
        backend,
        limits,
        served,
        room,
        outbox,
    };
    let mut writing = pin!(write(
        line,
        from,
        |taken| {
            bytes.fetch_sub(taken, Ordering::Relaxed);
            served.add(Count::Answers);
        },
        limits
    ));
    let end = select! {
        biased;
        end = reader.read() => match end {
            // The client has sent its last query; answer those that are open.
            End::Done => writing.await,
            end => end,
        },
        end = &mut writing => end,
    };
    if let End::Left(count) = end {
        served.add(count);
    }
}

struct Reader<'a, B> {
    line: &'a Stream,
    backend: &'a B,
    limits: &'a Limits,
    served: &'a Arc<ServerCounters>,
    /// Permits for open queries.
    room: Arc<Semaphore>,
    outbox: Outbox,
}

impl<B: Backend> Reader<'_, B> {
    async fn read(self) -> End {
        let mut decoder = Decoder::new(QUESTION_MAX);
        let mut chunk = [0; CHUNK];
        let mut begun = None;
        loop {
            loop {
                match decoder.next() {
                    Ok(Some(message)) => {
                        begun = None;
                        if let Err(nonsense) = self.pass_on(&message).await {
                            return End::Left(count_of(nonsense));
                        }
                    }
                    Ok(None) => break,
                    Err(nonsense) => return End::Left(count_of(nonsense)),
                }
            }
            let is_half = decoder.is_partial();
            let got = if is_half {
                let until = *begun.get_or_insert_with(Instant::now) + self.limits.half;
                match timeout_at(until, self.line.read(&mut chunk)).await {
                    Ok(got) => got,
                    Err(_) => return End::Left(Count::Half),
                }
            } else {
                self.line.read(&mut chunk).await
            };
            match got {
                Ok(0) if is_half => return End::Left(Count::Cut),
                Ok(0) => return End::Done,
                Ok(got) => decoder.push(&chunk[..got]),
                Err(_) => return End::Left(Count::Broken),
            }
        }
    }

    /// Waits until the client may have another query open, then passes the query on.
    async fn pass_on(&self, message: &[u8]) -> Result<(), BadMessage> {
        let permit = Arc::clone(&self.room).acquire_owned().await;
        let permit = permit.expect("the semaphore is never closed");
        match read_question(message) {
            Ok((head, question)) => {
                self.served.add(Count::Questions);
                let reply = Reply::new(head, self.outbox.clone(), permit, Arc::clone(self.served));
                self.backend.query(question, reply);
            }
            Err(Rejected::Answer(head, status)) => {
                self.served.add(Count::Refused);
                self.outbox.put(write_answer(&head, &Err(status)), permit);
            }
            Err(Rejected::Drop(nonsense)) => return Err(nonsense),
        }
        Ok(())
    }
}

const fn count_of(nonsense: BadMessage) -> Count {
    match nonsense {
        BadMessage::Version(_) => Count::Version,
        BadMessage::Opcode(_) | BadMessage::NoAnswer => Count::Opcode,
        BadMessage::Length { .. } | BadMessage::Cut { .. } => Count::Length,
    }
}

/// Writes answers as they come, each with one write as long as the client reads: the original clients read an
/// answer with one call.
async fn write(
    line: &Stream,
    mut from: UnboundedReceiver<Outgoing>,
    taken: impl Fn(usize),
    limits: &Limits,
) -> End {
    while let Some(out) = from.recv().await {
        let Outgoing::Answer(bytes, permit) = out else {
            return End::Left(Count::Unread);
        };
        match timeout(limits.stuck, line.write_all(&bytes)).await {
            Ok(Ok(())) => taken(bytes.len()),
            Ok(Err(_)) => return End::Left(Count::Broken),
            Err(_) => return End::Left(Count::Stuck),
        }
        drop(permit);
    }
    End::Done
}
