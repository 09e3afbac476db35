//! The odd rank of a pair: carries out orders until it is told to stop.

use super::{Answer, Order, POISON, Session, json};
use crate::bare::{Bare, Place};
use crate::error::BenchError;
use crate::link::{Link, Sinks, pattern};

/// Follows the leader's orders until `Quit`. `tell` makes the text for [`Session::hear_follower`].
///
/// # Errors
/// When the leader is lost, or messages arrive damaged.
pub fn follow<L: Link>(
    session: &mut Session<'_, L>,
    mut tell: impl FnMut() -> Vec<u8>,
) -> Result<(), BenchError> {
    loop {
        let said = session.link.hear()?;
        let order = serde_json::from_slice(&said).map_err(|_| session.disorder(&said))?;
        match order {
            Order::Page { pid, descriptor } => page(session, Place { pid, descriptor })?,
            Order::Bare { rounds } => bare(session, rounds)?,
            Order::Echo { bytes, exchanges } => echo(session, bytes, exchanges)?,
            Order::Sink { bytes, count, window } => sink(session, bytes, count, window)?,
            Order::Tell => {
                ready(session)?;
                session.link.tell(&tell())?;
            }
            Order::Quit => return ready(session),
        }
    }
}

fn ready<L: Link>(session: &mut Session<'_, L>) -> Result<(), BenchError> {
    session.link.tell(&json(&Answer::Ready))
}

fn page<L: Link>(session: &mut Session<'_, L>, place: Place) -> Result<(), BenchError> {
    let answer = match Bare::open(place) {
        Ok(bare) => {
            session.bare = Some(bare);
            Answer::Ready
        }
        Err(error) => Answer::Cannot(error.to_string()),
    };
    session.link.tell(&json(&answer))
}

fn bare<L: Link>(session: &mut Session<'_, L>, rounds: u32) -> Result<(), BenchError> {
    if session.bare.is_none() {
        let answer = Answer::Cannot("the page of the bare exchange was never opened".to_owned());
        return session.link.tell(&json(&answer));
    }
    ready(session)?;
    session.bare.as_mut().map_or(Ok(()), |bare| bare.pong(rounds))
}

fn echo<L: Link>(session: &mut Session<'_, L>, bytes: usize, exchanges: u64) -> Result<(), BenchError> {
    let ours = pattern(session.link.rank(), bytes);
    let theirs = pattern(session.link.peer(), bytes);
    let mut into = vec![POISON; bytes];
    ready(session)?;
    for _ in 0..exchanges {
        let found = session.link.recv(&mut into)?;
        session.link.send(&ours)?;
        if found != bytes {
            return session.check(&into[..found], &theirs);
        }
    }
    session.check(&into, &theirs)
}

fn sink<L: Link>(
    session: &mut Session<'_, L>,
    bytes: usize,
    count: u64,
    window: usize,
) -> Result<(), BenchError> {
    let theirs = pattern(session.link.peer(), bytes);
    let mut sinks = Sinks::new(bytes, window);
    sinks.buffers().iter_mut().for_each(|sink| sink.fill(POISON));
    ready(session)?;
    session.link.stream_in(&mut sinks, count, window)?;
    session.link.send(&[1])?;
    let used = sinks.count().min(usize::try_from(count).unwrap_or(usize::MAX));
    for sink in &sinks.buffers()[..used] {
        session.check(sink, &theirs)?;
    }
    Ok(())
}
