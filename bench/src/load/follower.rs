//! The odd rank of a pair: carries out orders until an order ends it. What it does with stamped messages is
//! in `verified`, with times in `one_way`.

use super::{APART, Answer, Order, POISON, Session, json};
use crate::baseline::{Baseline, Place};
use crate::error::BenchError;
use crate::link::{Flow, Link, Sinks, filled, pattern};
use crate::size::Size;

/// Follows the leader's orders until `Quit`. `own_text` makes the text for [`Session::follower_text`].
///
/// # Errors
/// When the leader is lost, or messages arrive damaged.
pub fn follow<L: Link>(
    session: &mut Session<'_, L>,
    mut own_text: impl FnMut() -> Vec<u8>,
) -> Result<(), BenchError> {
    let mut buffers = Buffers::default();
    session.verify(None);
    loop {
        session.look_around();
        let text = session.link.receive_control()?;
        let order: Order = serde_json::from_slice(&text).map_err(|_| session.disorder(&text))?;
        if order.bytes().is_some_and(|bytes| Size::new(bytes).is_none()) {
            return Err(session.disorder(&text));
        }
        match order {
            Order::Page { place } => page(session, place)?,
            Order::Bare { rounds } => bare(session, rounds)?,
            Order::Echo { bytes, exchanges } => echo(session, buffers.of(session, bytes)?, exchanges)?,
            Order::Sink { bytes, count, flow } => {
                sink(session, buffers.of(session, bytes)?, count, flow)?;
            }
            Order::Serve { bytes, first } => {
                let buffers = buffers.of(session, bytes)?;
                buffers.room(session.link.rank())?;
                ready(session)?;
                session.serve_verified(&mut buffers.into, &mut buffers.ours, first)?;
            }
            Order::Inspect {
                bytes,
                count,
                flow,
                first,
            } => {
                let buffers = buffers.of(session, bytes)?;
                let (sinks, _) = buffers.sinks(flow.window)?;
                ready(session)?;
                session.inspect(sinks, count, flow, first)?;
            }
            Order::Return { bytes } => give_back(session, buffers.of(session, bytes)?)?,
            Order::Note { bytes, exchanges } => {
                let buffers = buffers.of(session, bytes)?;
                buffers.room(session.link.rank())?;
                ready(session)?;
                session.note(&buffers.ours, &mut buffers.into, exchanges)?;
            }
            Order::Tally => {
                ready(session)?;
                let tally = session.take_tally()?;
                session.link.send_control(&json(&tally))?;
            }
            Order::Tell => {
                ready(session)?;
                session.link.send_control(&own_text())?;
            }
            Order::Quit => return ready(session),
        }
    }
}

fn ready<L: Link>(session: &mut Session<'_, L>) -> Result<(), BenchError> {
    session.link.send_control(&json(&Answer::Ready))
}

fn page<L: Link>(session: &mut Session<'_, L>, place: Place) -> Result<(), BenchError> {
    if session.apart {
        // The number of a process there may be that of another one here.
        return session
            .link
            .send_control(&json(&Answer::Cannot(APART.to_owned())));
    }
    let answer = match Baseline::open(place) {
        Ok(bare) => {
            session.bare = Some(bare);
            Answer::Ready
        }
        Err(error) => Answer::Cannot(error.to_string()),
    };
    session.link.send_control(&json(&answer))
}

fn bare<L: Link>(session: &mut Session<'_, L>, rounds: u32) -> Result<(), BenchError> {
    if session.bare.is_none() {
        let answer = Answer::Cannot("the page of the bare exchange was never opened".to_owned());
        return session.link.send_control(&json(&answer));
    }
    ready(session)?;
    session.bare.as_mut().map_or(Ok(()), |bare| bare.pong(rounds))
}

/// The buffers of one size, kept from order to order: filling them again may take longer than the order
/// itself.
#[derive(Debug, Default)]
struct Buffers {
    bytes: usize,
    ours: Vec<u8>,
    theirs: Vec<u8>,
    into: Vec<u8>,
    sinks: Option<(usize, Sinks)>,
}

impl Buffers {
    fn of<L: Link>(&mut self, session: &Session<'_, L>, bytes: usize) -> Result<&mut Self, BenchError> {
        if self.bytes != bytes {
            *self = Self {
                bytes,
                theirs: pattern(session.link.peer(), bytes)?,
                ..Self::default()
            };
        }
        Ok(self)
    }

    /// Makes room for one message to arrive in, and the answer of rank `own`.
    fn room(&mut self, own: u32) -> Result<(), BenchError> {
        if self.ours.len() != self.bytes {
            self.ours = pattern(own, self.bytes)?;
            self.into = filled(self.bytes, POISON)?;
        }
        Ok(())
    }

    /// The sinks of a window, poisoned, and what they are to hold in the end.
    fn sinks(&mut self, window: usize) -> Result<(&mut Sinks, &[u8]), BenchError> {
        let sinks = match self.sinks.take() {
            Some((of, kept)) if of == window => kept,
            _ => Sinks::new(self.bytes, window)?,
        };
        let (_, sinks) = self.sinks.insert((window, sinks));
        sinks.buffers().iter_mut().for_each(|sink| sink.fill(POISON));
        Ok((sinks, &self.theirs))
    }
}

fn echo<L: Link>(
    session: &mut Session<'_, L>,
    buffers: &mut Buffers,
    exchanges: u64,
) -> Result<(), BenchError> {
    let bytes = buffers.bytes;
    buffers.room(session.link.rank())?;
    buffers.into.fill(POISON);
    let (ours, theirs, into) = (&buffers.ours, &buffers.theirs, &mut buffers.into);
    ready(session)?;
    for _ in 0..exchanges {
        let found = session.link.recv(into)?;
        if found == bytes {
            session.link.send(ours)?;
            continue;
        }
        if found == 0 {
            // Ended early. The last message was not looked at, and the buffer still has it.
            session.check(into, theirs)?;
            return session.link.send(&[]);
        }
        session.link.send(ours)?;
        return session.check(&into[..found], theirs);
    }
    session.link.settle(into);
    session.check(into, theirs)
}

/// Answers messages until an empty one comes.
fn give_back<L: Link>(session: &mut Session<'_, L>, buffers: &mut Buffers) -> Result<(), BenchError> {
    buffers.room(session.link.rank())?;
    let (ours, theirs, into) = (&buffers.ours, &buffers.theirs, &mut buffers.into);
    ready(session)?;
    loop {
        let found = session.link.recv_open(into)?;
        if found == 0 {
            return session.link.send_end();
        }
        session.link.send(ours)?;
        if found != theirs.len() {
            return session.check(&into[..found], theirs);
        }
    }
}

fn sink<L: Link>(
    session: &mut Session<'_, L>,
    buffers: &mut Buffers,
    count: u64,
    flow: Flow,
) -> Result<(), BenchError> {
    let (sinks, theirs) = buffers.sinks(flow.window)?;
    ready(session)?;
    let came = session.link.stream_in(sinks, count, flow)?;
    session.link.send(&[1])?;
    let used = sinks.count().min(usize::try_from(came).unwrap_or(usize::MAX));
    sinks.buffers()[..used].iter_mut().try_for_each(|sink| {
        session.link.settle(sink);
        session.check(sink, theirs)
    })
}
