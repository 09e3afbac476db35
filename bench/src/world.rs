//! The link between two ranks of a world: the loads as a user would write them.

use std::time::Duration;

use doorbell::config::Mode;
use doorbell::{Config, PathStatus, Region, Request, World};
use doorbell_fabric::select::Choice;

use crate::env::RailUse;
use crate::error::BenchError;
use crate::link::{CONTROL_MAX, Flow, Link, Sinks};
use crate::load::{fitting, until_empty};

/// The tag of the measured messages.
const DATA: u64 = 0xda7a;
/// The tag of orders, answers and texts.
const CONTROL: u64 = 0xc0;
/// What has arrived is found within this time: it only waits to be looked at.
const LEFTOVER: Duration = Duration::from_millis(100);
/// Up to this size, a message is taken by the rail as it is: blocking sends and receives stream, and the
/// rail's own queue is the window. Above it, requests are kept outstanding.
const TAKEN_AT_ONCE: usize = 4096;
/// The size from which streams send out of owned regions and receive into them, as a tuned program would: the
/// receiver on the same host then copies by itself, once, without the kernel.
pub const REGIONS_FROM: usize = 64 << 10;

/// One rank's side of a pair in a world.
#[derive(Debug)]
pub struct WorldLink<'a> {
    world: &'a World,
    peer: u32,
    rail: String,
    /// Regions of the size streamed last, kept because a receiver remembers those it has seen.
    regions: Vec<Region>,
    /// The requests of an open loop.
    sends: Turns<'a>,
    receives: Turns<'a>,
}

/// Requests that are used by turns, each with a region of its own.
#[derive(Debug, Default)]
struct Turns<'a> {
    places: Vec<(Region, Option<Request<'a>>)>,
    next: usize,
}

impl<'a> Turns<'a> {
    fn of(world: &World, bytes: usize, count: usize) -> Result<Self, doorbell::Error> {
        let places: Result<Vec<_>, doorbell::Error> =
            (0..count).map(|_| Ok((world.region(bytes)?, None))).collect();
        Ok(Self {
            places: places?,
            next: 0,
        })
    }

    #[inline]
    fn turn(&mut self) -> Option<&mut (Region, Option<Request<'a>>)> {
        self.places.get_mut(self.next)
    }

    #[inline]
    fn advance(&mut self) {
        self.next = if self.next + 1 < self.places.len() {
            self.next + 1
        } else {
            0
        };
    }
}

impl<'a> WorldLink<'a> {
    /// Creates the link to `peer`.
    pub fn new(world: &'a World, peer: u32) -> Self {
        // If the peer cannot be connected, the first message to it fails.
        let _ = world.meet(peer);
        let rails = world.peer(peer).map_or_else(Vec::new, |peer| peer.rails);
        let rail = rails.iter().find(|rail| rail.carries).or_else(|| rails.first());
        let rail = rail.map_or_else(|| "none".to_owned(), |rail| rail.name.clone());
        Self {
            world,
            peer,
            rail,
            regions: Vec::new(),
            sends: Turns::default(),
            receives: Turns::default(),
        }
    }

    /// All rails to the peer with what they are for: the one of small messages first, the others in the order
    /// of their pairs.
    pub fn rails(&self) -> Vec<RailUse> {
        let mut paths = self.world.paths(self.peer).unwrap_or_default();
        paths.sort_by_key(|way| !way.carries);
        let used = |way: PathStatus| RailUse {
            rail: way.rail,
            to: way.to,
            role: way.role.to_owned(),
        };
        paths.into_iter().map(used).collect()
    }

    /// Returns why this rail carries the messages.
    pub fn reason(&self) -> String {
        let Some(selection) = self.world.selection(self.peer) else {
            return "the peer is unknown".to_owned();
        };
        let chosen = selection
            .rails
            .iter()
            .find(|judged| judged.rail.as_str() == self.rail);
        let why = chosen.map(|judged| match &judged.choice {
            Choice::Chosen { .. } if judged.named => "it was named".to_owned(),
            Choice::Chosen {
                latency_ns, measured, ..
            } => {
                let how = if *measured { "measured" } else { "estimated" };
                format!(
                    "the fastest that reaches rank {} ({latency_ns} ns {how})",
                    self.peer
                )
            }
            Choice::Lost { reason } => reason.to_string(),
        });
        let why = why.unwrap_or_else(|| "no rail was chosen".to_owned());
        match self.world.rail_how(&self.rail) {
            Some(how) => format!("{why}; {how}"),
            None => why,
        }
    }
}

/// Whether progress is made by the caller or by a thread, as a word.
pub fn mode(config: &Config) -> &'static str {
    match config.progress.mode.get() {
        Mode::Inline => "inline",
        Mode::Dedicated => "dedicated",
    }
}

impl Link for WorldLink<'_> {
    fn rank(&self) -> u32 {
        self.world.rank()
    }

    fn peer(&self) -> u32 {
        self.peer
    }

    fn rail(&self) -> &str {
        &self.rail
    }

    // Inlined: what is measured is the call that a program makes, not this one around it.
    #[inline(always)]
    fn send(&mut self, body: &[u8]) -> Result<(), BenchError> {
        self.world.send(self.peer, DATA, body).map_err(failed)
    }

    #[inline(always)]
    fn recv(&mut self, into: &mut [u8]) -> Result<usize, BenchError> {
        match self.world.recv(self.peer, DATA, into) {
            Ok(status) => Ok(status.len),
            Err(error) => Err(failed(error)),
        }
    }

    fn stream_out(
        &mut self,
        body: &[u8],
        count: u64,
        flow: Flow,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<u64, BenchError> {
        let (world, peer, window) = (self.world, self.peer, flow.window);
        let mut pace = Pace::of(body.len(), flow);
        let mut sent = 0;
        if in_regions(body.len(), flow) {
            self.regions(1, body.len())?[0].write(0, body);
        }
        for batch in batches(count, window) {
            if pace.is_due(sent) && !go_on() {
                self.end_stream(count - sent, pace.posted)?;
                break;
            }
            if is_blocking(body.len(), flow) {
                // All but the last of each window announce that more follows.
                for _ in 1..batch {
                    world.send_more(peer, DATA, body)?;
                }
                world.send(peer, DATA, body)?;
            } else if in_regions(body.len(), flow) {
                let region = &self.regions[0];
                let sends: Result<Vec<_>, _> = (0..batch)
                    .map(|_| world.isend_region(peer, DATA, region.whole()))
                    .collect();
                world.wait_all(&mut sends?)?;
            } else {
                world.scope(|scope| {
                    let mut sends = Vec::with_capacity(batch);
                    for _ in 0..batch {
                        sends.push(scope.isend(peer, DATA, body)?);
                    }
                    world.wait_all(&mut sends)
                })?;
            }
            sent += batch as u64;
        }
        Ok(sent)
    }

    fn stream_in(&mut self, sinks: &mut Sinks, count: u64, flow: Flow) -> Result<u64, BenchError> {
        let (world, peer, window) = (self.world, self.peer, flow.window);
        let many = sinks.count();
        let mut came = 0;
        if is_blocking(sinks.bytes(), flow) {
            let mut at = 0;
            while came < count {
                if world.recv(peer, DATA, &mut sinks.buffers()[at])?.len == 0 {
                    break;
                }
                came += 1;
                at = if at + 1 < many { at + 1 } else { 0 };
            }
            return Ok(came);
        }
        if in_regions(sinks.bytes(), flow) {
            return self.regions_in(sinks, count, window);
        }
        for batch in batches(count, window.min(many)) {
            let ended = world.scope(|scope| {
                let mut posted = Vec::with_capacity(batch);
                for sink in &mut sinks.buffers()[..batch] {
                    posted.push(scope.irecv(peer, DATA, sink)?);
                }
                world.wait_all(&mut posted)?;
                Ok(is_end(&posted))
            })?;
            if ended {
                break;
            }
            came += batch as u64;
        }
        Ok(came)
    }

    fn stream_out_each(
        &mut self,
        bodies: &mut Sinks,
        count: u64,
        flow: Flow,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), BenchError> {
        let (world, peer, bytes) = (self.world, self.peer, bodies.bytes());
        if is_blocking(bytes, flow) {
            return (0..count).try_for_each(|_| {
                let body = &mut bodies.buffers()[0];
                fill(body);
                Ok(world.send(peer, DATA, body)?)
            });
        }
        let many = flow.window.min(bodies.count());
        for batch in batches(count, many) {
            let bodies = &mut bodies.buffers()[..batch];
            bodies.iter_mut().for_each(|body| fill(body));
            if in_regions(bytes, flow) {
                let regions = self.regions(many, bytes)?;
                let sends: Result<Vec<_>, _> = std::iter::zip(regions, bodies)
                    .map(|(region, body)| {
                        region.write(0, body);
                        world.isend_region(peer, DATA, region.whole())
                    })
                    .collect();
                world.wait_all(&mut sends?)?;
                continue;
            }
            world.scope(|scope| {
                let sends: Result<Vec<_>, _> =
                    bodies.iter().map(|body| scope.isend(peer, DATA, body)).collect();
                world.wait_all(&mut sends?)
            })?;
        }
        Ok(())
    }

    fn stream_in_each(
        &mut self,
        sinks: &mut Sinks,
        count: u64,
        flow: Flow,
        look: &mut dyn FnMut(&[u8]),
    ) -> Result<(), BenchError> {
        let bytes = sinks.bytes();
        if !is_blocking(bytes, flow) {
            for batch in batches(count, flow.window.min(sinks.count())) {
                let ended = if in_regions(bytes, flow) {
                    self.batch_of_regions(sinks, batch, look)?
                } else {
                    self.batch(sinks, batch, look)?
                };
                if ended {
                    return Ok(());
                }
            }
        }
        until_empty(self, &mut sinks.buffers()[0], |body| {
            look(body);
            Ok(())
        })
    }

    fn begin_open(&mut self, bytes: usize, under_way: usize) -> Result<(), BenchError> {
        self.sends = Turns::of(self.world, bytes, under_way)?;
        self.receives = Turns::of(self.world, bytes, under_way)?;
        for (region, request) in &mut self.receives.places {
            *request = Some(self.world.irecv_region(self.peer, DATA, region.whole())?);
        }
        Ok(())
    }

    fn end_open(&mut self) {
        for (_, request) in &mut self.receives.places {
            if let Some(mut request) = request.take() {
                request.cancel();
            }
        }
        self.sends = Turns::default();
        self.receives = Turns::default();
    }

    #[inline]
    fn can_send(&mut self) -> Result<bool, BenchError> {
        let Some((_, under_way)) = self.sends.turn() else {
            return Ok(false);
        };
        if let Some(request) = under_way {
            match request.test() {
                None => return Ok(false),
                Some(ended) => ended?,
            };
            *under_way = None;
        }
        Ok(true)
    }

    #[inline]
    fn try_send(&mut self, body: &[u8]) -> Result<bool, BenchError> {
        if !self.can_send()? {
            return Ok(false);
        }
        let Some((region, under_way)) = self.sends.turn() else {
            return Ok(false);
        };
        region.write(0, body);
        let Some(slice) = region.slice(0, body.len()) else {
            return Ok(false);
        };
        let request = self.world.isend_region(self.peer, DATA, slice)?;
        *under_way = (!request.is_done()).then_some(request);
        self.sends.advance();
        Ok(true)
    }

    #[inline]
    fn try_recv(&mut self, into: &mut [u8]) -> Result<Option<usize>, BenchError> {
        let (world, peer) = (self.world, self.peer);
        let Some((region, Some(request))) = self.receives.turn() else {
            return Ok(None);
        };
        let Some(ended) = request.test() else {
            return Ok(None);
        };
        if let Ok(status) = &ended {
            let found = status.len.min(into.len());
            region.read(0, &mut into[..found]);
        }
        *request = world.irecv_region(peer, DATA, region.whole())?;
        self.receives.advance();
        Ok(Some(ended?.len))
    }

    fn leftover(&mut self, into: &mut [u8]) -> Result<Option<usize>, BenchError> {
        match self
            .world
            .within(LEFTOVER)
            .probe(self.peer, DATA)
            .map_err(BenchError::from)
        {
            Ok(_) => self.recv(into).map(Some),
            Err(error) if error.is_timeout() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn deadline(&self) -> Duration {
        *self.world.config().wait.deadline.get()
    }

    fn send_control(&mut self, text: &[u8]) -> Result<(), BenchError> {
        send_control(self.world, self.peer, text)
    }

    fn receive_control(&mut self) -> Result<Vec<u8>, BenchError> {
        receive_control(self.world, self.peer)
    }

    fn receive_control_within(&mut self, limit: Duration) -> Result<Vec<u8>, BenchError> {
        receive_control_within(self.world, self.peer, limit)
    }
}

/// Whether messages of a stream are blocking calls.
fn is_blocking(bytes: usize, flow: Flow) -> bool {
    bytes <= TAKEN_AT_ONCE && !flow.posted
}

/// Whether messages of a stream go out of regions and into them.
fn in_regions(bytes: usize, flow: Flow) -> bool {
    bytes >= REGIONS_FROM && !flow.plain
}

/// Whether these receives took the end of a stream: all of them did then.
fn is_end(posted: &[Request<'_>]) -> bool {
    let first = posted.first().and_then(Request::status);
    first.is_some_and(|status| status.len == 0)
}

/// When the sender of a stream calls `go_on`: so seldom that it costs nothing, and only where the receiver
/// posts its next receives.
struct Pace {
    /// Receives that are posted together at the other side.
    posted: u64,
    /// Messages between two calls of `go_on`.
    every: u64,
    next: u64,
}

/// Between two requests go this many messages, or as many as have these bytes together.
const ASK_MESSAGES: u64 = 1024;
const ASK_BYTES: u64 = 1 << 20;

impl Pace {
    fn of(bytes: usize, flow: Flow) -> Self {
        let posted = if is_blocking(bytes, flow) {
            1
        } else {
            flow.window.min(Sinks::count_for(bytes, flow.window)) as u64
        };
        let every = (ASK_BYTES / bytes.max(1) as u64).clamp(1, ASK_MESSAGES);
        Self {
            posted,
            every,
            next: every,
        }
    }

    fn is_due(&mut self, sent: u64) -> bool {
        let due = sent >= self.next && sent.is_multiple_of(self.posted);
        if due {
            self.next = sent + self.every;
        }
        due
    }
}

#[cold]
#[inline(never)]
fn failed(error: doorbell::Error) -> BenchError {
    error.into()
}

impl WorldLink<'_> {
    /// Allocates `count` regions of `bytes` bytes.
    fn regions(&mut self, count: usize, bytes: usize) -> Result<&[Region], BenchError> {
        if self.regions.first().is_none_or(|region| region.len() != bytes) {
            self.regions.clear();
        }
        while self.regions.len() < count {
            self.regions.push(self.world.region(bytes)?);
        }
        Ok(&self.regions[..count])
    }

    /// Ends a stream before its count, of which `left` are missing: an empty message for each receive of
    /// those that the other side posts together.
    fn end_stream(&mut self, left: u64, posted: u64) -> Result<(), BenchError> {
        (0..left.min(posted)).try_for_each(|_| self.send(&[]))
    }

    fn regions_in(&mut self, sinks: &mut Sinks, count: u64, window: usize) -> Result<u64, BenchError> {
        let (world, peer) = (self.world, self.peer);
        let many = window.min(sinks.count());
        let regions = self.regions(many, sinks.bytes())?;
        let (mut filled, mut came) = (0, 0);
        for batch in batches(count, many) {
            let posted: Result<Vec<_>, _> = regions[..batch]
                .iter()
                .map(|region| world.irecv_region(peer, DATA, region.whole()))
                .collect();
            let mut posted = posted?;
            world.wait_all(&mut posted)?;
            if is_end(&posted) {
                break;
            }
            filled = filled.max(batch);
            came += batch as u64;
        }
        // Arrivals are read in the sinks, as all others.
        for (region, sink) in regions[..filled].iter().zip(sinks.buffers()) {
            region.read(0, sink);
        }
        Ok(came)
    }
}

impl WorldLink<'_> {
    /// Receives up to `batch` messages through posted receives; `true` when an empty one came.
    fn batch(
        &self,
        sinks: &mut Sinks,
        batch: usize,
        look: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, BenchError> {
        let mut failed = Ok(());
        let ended = self.world.scope(|scope| {
            let posted: Result<Vec<_>, _> = sinks.buffers()[..batch]
                .iter_mut()
                .map(|sink| scope.irecv(self.peer, DATA, sink))
                .collect();
            let mut ended = false;
            for mut request in posted? {
                // Nothing is expected behind the end; what is there nevertheless is looked at.
                let cancelled = ended && request.cancel();
                match request.wait_buffer().map_err(BenchError::from) {
                    Ok((status, _)) if status.len == 0 => ended = true,
                    Ok((status, body)) => look(&body[..status.len]),
                    Err(_) if cancelled => {}
                    Err(error) if error.is_too_long() => look(&[]),
                    Err(error) => {
                        failed = Err(error);
                        ended = true;
                    }
                }
            }
            Ok(ended)
        });
        failed?;
        Ok(ended?)
    }

    /// Receives as [`WorldLink::batch`] does, into regions.
    fn batch_of_regions(
        &mut self,
        sinks: &mut Sinks,
        batch: usize,
        look: &mut dyn FnMut(&[u8]),
    ) -> Result<bool, BenchError> {
        let (world, peer) = (self.world, self.peer);
        let regions = self.regions(batch, sinks.bytes())?;
        let posted: Result<Vec<_>, _> = regions
            .iter()
            .map(|region| world.irecv_region(peer, DATA, region.whole()))
            .collect();
        let (mut ended, mut failed) = (false, Ok(()));
        for ((mut request, region), sink) in posted?.into_iter().zip(regions).zip(sinks.buffers()) {
            let cancelled = ended && request.cancel();
            match fitting(request.wait().map(|status| status.len).map_err(BenchError::from)) {
                Ok(Some(0)) => ended = true,
                Ok(found) => {
                    let body = &mut sink[..found.unwrap_or(0)];
                    region.read(0, body);
                    look(body);
                }
                Err(_) if cancelled => {}
                Err(error) => {
                    failed = Err(error);
                    ended = true;
                }
            }
        }
        failed.map(|()| ended)
    }
}

/// Receives a control message of any length. Between two of them a pair does nothing that takes long and does
/// not wait itself, so that the deadline of every wait is the right one: a rank that has stopped is reported,
/// and not waited for.
fn receive_control(world: &World, from: u32) -> Result<Vec<u8>, BenchError> {
    receive_control_within(world, from, *world.config().wait.deadline.get())
}

pub(crate) fn receive_control_within(
    world: &World,
    from: u32,
    limit: Duration,
) -> Result<Vec<u8>, BenchError> {
    let patient = world.within(limit);
    let length = patient.probe(from, CONTROL)?.len;
    if length > CONTROL_MAX {
        return Err(BenchError::Disorder {
            rank: from,
            what: format!("a control message of {length} bytes"),
        });
    }
    let mut text = vec![0; length];
    patient.recv(from, CONTROL, &mut text)?;
    Ok(text)
}

/// Sends a control message.
fn send_control(world: &World, to: u32, text: &[u8]) -> Result<(), BenchError> {
    Ok(world.send(to, CONTROL, text)?)
}

/// Sends a control message, and waits for at most `limit`.
pub(crate) fn send_control_within(
    world: &World,
    to: u32,
    text: &[u8],
    limit: Duration,
) -> Result<(), BenchError> {
    Ok(world.within(limit).send(to, CONTROL, text)?)
}

/// Divides `count` into batches of at most `window`.
fn batches(count: u64, window: usize) -> impl Iterator<Item = usize> {
    let window = window.max(1) as u64;
    let rest = (count % window) as usize;
    (0..count / window)
        .map(move |_| window as usize)
        .chain((rest > 0).then_some(rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With every kind of flow, both sides know how many there were, and what comes next is not mistaken for
    /// one.
    #[test]
    fn a_stream_that_ends_early_is_counted_alike_by_both_sides() {
        let flow = |window, posted, plain| Flow {
            window,
            posted,
            plain,
        };
        for (bytes, flow) in [
            (8, flow(64, false, false)),
            (8, flow(5, true, false)),
            (20_000, flow(10, false, false)),
            (REGIONS_FROM, flow(7, false, false)),
            (2 << 20, flow(64, false, false)),
            (REGIONS_FROM, flow(16, false, true)),
        ] {
            let mut worlds = doorbell::local(2, &Config::default()).unwrap();
            let (far, near) = (worlds.pop().unwrap(), worlds.pop().unwrap());
            let receiving = std::thread::spawn(move || {
                let mut link = WorldLink::new(&far, 0);
                let mut sinks = Sinks::new(bytes, flow.window).unwrap();
                let came = link.stream_in(&mut sinks, 1_000_000, flow).unwrap();
                link.send(&[1]).unwrap();
                // Behind it, one that is whole.
                let whole = link.stream_in(&mut sinks, 20, flow).unwrap();
                link.send(&[1]).unwrap();
                assert!(sinks.buffers()[0].iter().all(|byte| *byte == 7));
                (came, whole)
            });
            let mut link = WorldLink::new(&near, 1);
            let body = vec![7; bytes];
            let mut asked = 0;
            let mut go_on = || {
                asked += 1;
                asked < 3
            };
            let sent = link.stream_out(&body, 1_000_000, flow, &mut go_on).unwrap();
            let mut answer = [0];
            link.recv(&mut answer).unwrap();
            assert_eq!(
                link.stream_out(&body, 20, flow, &mut || true).unwrap(),
                20,
                "{bytes}"
            );
            link.recv(&mut answer).unwrap();
            assert!((1..1_000_000).contains(&sent), "{bytes}: {sent}");
            assert_eq!(receiving.join().unwrap(), (sent, 20), "{bytes}");
        }
    }

    #[test]
    fn batches_add_up() {
        assert_eq!(batches(10, 4).collect::<Vec<_>>(), [4, 4, 2]);
        assert_eq!(batches(8, 4).collect::<Vec<_>>(), [4, 4]);
        assert_eq!(batches(0, 4).count(), 0);
        assert_eq!(batches(3, 0).sum::<usize>(), 3);
    }
}
