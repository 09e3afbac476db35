//! The loads between two threads over channels: the protocol of orders, the accounting, and what a bad rail
//! does.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use doorbell_fabric::clock::Clock;

use super::{Identity, KneeLimit, Row, Session, follow, lead};
use crate::error::BenchError;
use crate::link::{Flow, Link, Sinks};
use crate::plan::{Asked, Kind, Plan, SHARES};
use crate::size::Size;

struct Channels {
    rank: u32,
    data: (Sender<Vec<u8>>, Receiver<Vec<u8>>),
    control: (Sender<Vec<u8>>, Receiver<Vec<u8>>),
    /// What is done to every message after this many.
    fault: Fault,
    after: u64,
    sent: u64,
    /// A message that waits to be overtaken.
    held: Option<Vec<u8>>,
    /// Whether an empty message ends a loop.
    ends_early: bool,
    /// How long a message is waited for.
    patience: Duration,
}

/// What a rail can do to a message.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Corrupt,
    Shorten,
    Lengthen,
    /// Loses one in this many, from there on.
    Lose(u64),
    Duplicate(u64),
    /// Lets the message behind one overtake it.
    Swap(u64),
    /// Sending one stalls for this time.
    Stall(Duration),
    /// Each takes this time.
    Slow(Duration),
    /// One takes this time: its sender is stopped meanwhile.
    Hang(Duration),
}

/// How long a side waits for a message.
const PATIENCE: Duration = Duration::from_millis(300);

fn gone() -> BenchError {
    BenchError::Thread {
        what: "test",
        reason: "the other side is gone".to_owned(),
    }
}

impl Link for Channels {
    fn rank(&self) -> u32 {
        self.rank
    }
    fn peer(&self) -> u32 {
        1 - self.rank
    }
    fn rail(&self) -> &str {
        "test"
    }
    fn ends_early(&self) -> bool {
        self.ends_early
    }
    fn send(&mut self, body: &[u8]) -> Result<(), BenchError> {
        let mut body = body.to_vec();
        let put = |body| self.data.0.send(body).map_err(|_| gone());
        // Ends and answers of one byte are left alone.
        if body.len() < 2 {
            return put(body);
        }
        self.sent += 1;
        let behind = self.sent.saturating_sub(self.after);
        let hit = |every: u64| behind > 0 && behind.is_multiple_of(every);
        match self.fault {
            Fault::Corrupt if behind > 0 => *body.last_mut().unwrap() ^= 1,
            Fault::Shorten if behind > 0 => body.truncate(body.len() - 1),
            Fault::Lengthen if behind > 0 => body.push(7),
            Fault::Lose(every) if hit(every) => return Ok(()),
            Fault::Duplicate(every) if hit(every) => put(body.clone())?,
            Fault::Hang(time) if behind == 1 => std::thread::sleep(time),
            Fault::Slow(time) if behind > 0 => {
                let begun = Instant::now();
                while begun.elapsed() < time {
                    std::hint::spin_loop();
                }
            }
            Fault::Swap(every) if hit(every) => {
                self.held = Some(body);
                return Ok(());
            }
            _ => {}
        }
        put(body)?;
        self.held.take().map_or(Ok(()), put)
    }
    fn recv(&mut self, into: &mut [u8]) -> Result<usize, BenchError> {
        let body = self
            .data
            .1
            .recv_timeout(self.patience)
            .map_err(|error| match error {
                RecvTimeoutError::Timeout => BenchError::Silent { what: "a test" },
                RecvTimeoutError::Disconnected => gone(),
            })?;
        if body.len() > into.len() {
            let (length, capacity) = (body.len() as u64, into.len() as u64);
            return Err(BenchError::from(doorbell::Error::Truncated {
                source_rank: self.peer(),
                tag: 0,
                length,
                capacity,
            }));
        }
        into[..body.len()].copy_from_slice(&body);
        Ok(body.len())
    }
    fn stream_out(
        &mut self,
        body: &[u8],
        count: u64,
        _: Flow,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<u64, BenchError> {
        for sent in 0..count {
            if sent > 0 && !go_on() {
                self.send(&[])?;
                return Ok(sent);
            }
            self.send(body)?;
        }
        Ok(count)
    }
    fn stream_in(&mut self, sinks: &mut Sinks, count: u64, _: Flow) -> Result<u64, BenchError> {
        for n in 0..count {
            let at = n as usize % sinks.count();
            if self.recv(&mut sinks.buffers()[at])? == 0 {
                return Ok(n);
            }
        }
        Ok(count)
    }
    fn stream_out_each(
        &mut self,
        bodies: &mut Sinks,
        count: u64,
        _: Flow,
        fill: &mut dyn FnMut(&mut [u8]),
    ) -> Result<(), BenchError> {
        (0..count as usize).try_for_each(|n| {
            let at = n % bodies.count();
            fill(&mut bodies.buffers()[at]);
            self.send(&bodies.buffers()[at])
        })
    }
    fn stream_in_each(
        &mut self,
        sinks: &mut Sinks,
        _: u64,
        _: Flow,
        look: &mut dyn FnMut(&[u8]),
    ) -> Result<(), BenchError> {
        super::until_empty(self, &mut sinks.buffers()[0], |body| {
            look(body);
            Ok(())
        })
    }
    fn begin_open(&mut self, _: usize, _: usize) -> Result<(), BenchError> {
        Ok(())
    }
    fn end_open(&mut self) {}
    fn can_send(&mut self) -> Result<bool, BenchError> {
        Ok(true)
    }
    fn try_send(&mut self, body: &[u8]) -> Result<bool, BenchError> {
        if let Fault::Stall(time) = self.fault
            && self.sent + 1 == self.after
        {
            std::thread::sleep(time);
        }
        self.send(body).map(|()| true)
    }
    fn try_recv(&mut self, into: &mut [u8]) -> Result<Option<usize>, BenchError> {
        match self.data.1.try_recv() {
            Err(TryRecvError::Empty) => Ok(None),
            Err(TryRecvError::Disconnected) => Err(gone()),
            Ok(body) => {
                into[..body.len()].copy_from_slice(&body);
                Ok(Some(body.len()))
            }
        }
    }
    fn leftover(&mut self, into: &mut [u8]) -> Result<Option<usize>, BenchError> {
        self.try_recv(into)
    }
    fn deadline(&self) -> Duration {
        self.patience
    }
    fn send_control(&mut self, text: &[u8]) -> Result<(), BenchError> {
        self.control.0.send(text.to_vec()).map_err(|_| gone())
    }
    fn receive_control(&mut self) -> Result<Vec<u8>, BenchError> {
        self.control.1.recv().map_err(|_| gone())
    }
    fn receive_control_within(&mut self, limit: Duration) -> Result<Vec<u8>, BenchError> {
        self.control.1.recv_timeout(limit).map_err(|error| match error {
            RecvTimeoutError::Timeout => BenchError::Silent { what: "a test" },
            RecvTimeoutError::Disconnected => gone(),
        })
    }
}

/// The second rank's messages suffer from `fault`; with `both`, also the first one's.
fn pair(fault: Fault, after: u64, both: bool) -> (Channels, Channels) {
    let (a, b, c, d) = (channel(), channel(), channel(), channel());
    let side = |rank, data, control, after| Channels {
        rank,
        data,
        control,
        fault,
        after,
        sent: 0,
        held: None,
        ends_early: true,
        patience: PATIENCE,
    };
    (
        side(0, (a.0, b.1), (c.0, d.1), if both { after } else { u64::MAX }),
        side(1, (b.0, a.1), (d.0, c.1), after),
    )
}

/// Makes the same pair with long deadlines, so that a busy machine loses nothing.
fn patient(fault: Fault, after: u64, both: bool) -> (Channels, Channels) {
    let (mut near, mut far) = pair(fault, after, both);
    (near.patience, far.patience) = (100 * PATIENCE, 100 * PATIENCE);
    (near, far)
}

/// Runs `plan` with the leader here and the follower in a thread, whose messages are damaged after the first
/// `damage_after`.
fn run(plan: &Plan, damage_after: u64) -> Result<Vec<Row>, BenchError> {
    run_over(plan, pair(Fault::Corrupt, damage_after, false))
}

fn run_over(plan: &Plan, (mut near, mut far): (Channels, Channels)) -> Result<Vec<Row>, BenchError> {
    let following = std::thread::spawn(move || {
        let clock = Clock::system();
        follow(&mut Session::new(&mut far, &clock), || {
            b"text of the follower".to_vec()
        })
    });
    let clock = Clock::system();
    let mut session = Session::new(&mut near, &clock);
    if plan.reference {
        session.share_page()?.unwrap();
    }
    let rows = lead(&mut session, plan, &mut ())?;
    assert_eq!(session.follower_text()?, b"text of the follower");
    session.quit()?;
    following.join().unwrap()?;
    Ok(rows)
}

fn plan(kind: Kind, sizes: &[usize], samples: u64) -> Plan {
    Plan {
        sizes: sizes.iter().filter_map(|bytes| Size::new(*bytes)).collect(),
        samples: Some(samples),
        reference: false,
        ..Plan::new(kind)
    }
}

#[test]
fn a_pingpong_counts_every_sample_and_keeps_the_warm_up_apart() {
    let rows = run(&plan(Kind::Pingpong, &[1, 100], 1_500), u64::MAX).unwrap();
    assert_eq!(rows.len(), 2);
    for (row, bytes) in rows.iter().zip([1, 100]) {
        assert_eq!((row.bytes, row.pair), (bytes, [0, 1]));
        assert!(row.samples >= 1_500, "{}", row.samples);
        let recorder = crate::stats::Recorder::decoded(&row.histogram).unwrap();
        assert_eq!(recorder.samples(), row.samples);
        assert!(row.warm_up.exchanges > 0 && row.warm_up.blocks > 1);
        let (half, full) = (row.half_rtt_ns, row.rtt_ns);
        assert_eq!(half.p50.map(|ns| ns * 2.0), full.p50);
        assert_eq!(half.mean.map(|ns| ns * 2.0), full.mean);
        assert!(half.p99.is_some() && half.p9999.is_none());
        assert!(row.reference.ratio.is_none() && row.reference.band.is_none());
    }
}

#[test]
fn a_stream_counts_messages_and_knows_what_a_copy_allows() {
    for kind in [Kind::Stream, Kind::Rate] {
        let rows = run(&plan(kind, &[64], 5_000), u64::MAX).unwrap();
        let row = &rows[0];
        assert!(row.samples >= 5_000);
        let (bytes, messages) = (row.bytes_per_second.unwrap(), row.messages_per_second.unwrap());
        assert!((bytes / messages - 64.0).abs() < 1e-6);
        assert!(row.reference.memcpy_bytes_per_second.unwrap() > 0.0);
        assert!(row.half_rtt_ns.p50.is_none() && row.histogram.is_empty());
    }
}

#[test]
fn with_a_page_every_row_carries_the_bare_exchange() {
    let plan = Plan {
        samples: None,
        seconds: 0.02,
        reference: true,
        ..plan(Kind::Pingpong, &[8], 1)
    };
    let rows = run(&plan, u64::MAX).unwrap();
    let reference = &rows[0].reference;
    assert!(reference.before_ns.unwrap() > 0.0 && reference.after_ns.unwrap() > 0.0);
    assert_eq!(reference.ratio.is_some(), reference.band.is_some());
}

#[test]
fn a_damaged_message_ends_the_measurement() {
    // The number of samples is a minimum, and more than the good messages: no machine is too slow to meet the
    // damage.
    let error = run(&plan(Kind::Pingpong, &[16], 2_000), 1_000).unwrap_err();
    assert!(
        matches!(
            error,
            BenchError::Damaged {
                from: 1,
                expected: 16,
                found: 15,
                ..
            }
        ),
        "{error}"
    );
}

/// The verdict on one size over a rail with a fault that begins behind the warm-up's first messages.
fn verdict(kind: Kind, bytes: usize, fault: Option<Fault>) -> (u64, [u64; 4]) {
    let plan = Plan {
        verify: true,
        ..plan(kind, &[bytes], 600)
    };
    let after = if fault.is_some() { 100 } else { u64::MAX };
    let rows = run_over(&plan, pair(fault.unwrap_or(Fault::Corrupt), after, true)).unwrap();
    let v = rows[0].verified.unwrap();
    assert!(v.cost_ns > 0.0 && v.longest_gap_ns > 0);
    (v.messages, [v.lost, v.duplicated, v.misordered, v.corrupt])
}

const KINDS: [Kind; 3] = [Kind::Pingpong, Kind::Stream, Kind::Rate];

#[test]
fn a_good_rail_verifies_clean_at_every_size() {
    for kind in KINDS {
        for bytes in [1, 3, 8, 100] {
            let (messages, faults) = verdict(kind, bytes, None);
            assert!(messages >= 600, "{kind} {bytes} B: {messages}");
            assert_eq!(faults, [0; 4], "{kind} {bytes} B");
        }
    }
}

#[test]
fn lost_messages_are_a_result_and_not_only_a_hang() {
    for (kind, bytes) in [(Kind::Stream, 8), (Kind::Rate, 2), (Kind::Stream, 1000)] {
        let (messages, [lost, duplicated, misordered, corrupt]) = verdict(kind, bytes, Some(Fault::Lose(10)));
        let expected = (messages - 100) / 10;
        assert!(lost.abs_diff(expected) <= 1, "{kind}: {lost} of {expected}");
        assert_eq!([duplicated, misordered, corrupt], [0; 3]);
    }
    // A closed loop waits for the lost one, and ends there with what it has.
    let (messages, faults) = verdict(Kind::Pingpong, 8, Some(Fault::Lose(50)));
    assert!(messages < 1_000, "{messages}");
    assert_eq!(faults, [1, 0, 0, 0]);
}

#[test]
fn a_side_that_stops_for_longer_than_the_deadline_has_lost_nothing() {
    let open = |plan| Plan {
        open: Some(Asked::PerSecond(20_000.0)),
        ..plan
    };
    let closed = |plan| plan;
    let plans: [(Kind, &dyn Fn(Plan) -> Plan); 3] = [
        (Kind::Pingpong, &closed),
        (Kind::Pingpong, &open),
        (Kind::Stream, &closed),
    ];
    for (kind, of) in plans {
        let plan = of(Plan {
            verify: true,
            ..plan(kind, &[8], 600)
        });
        // The leader stops in a stream: there it is the sender. Its follower waits in vain, and reports that.
        for hang in [PATIENCE * 2, PATIENCE * 10] {
            let sides = pair(Fault::Hang(hang), 100, kind == Kind::Stream);
            let (mut near, mut far) = sides;
            let following = std::thread::spawn(move || {
                let clock = Clock::system();
                follow(&mut Session::new(&mut far, &clock), Vec::new)
            });
            let clock = Clock::system();
            let error = lead(&mut Session::new(&mut near, &clock), &plan, &mut ()).unwrap_err();
            assert!(error.is_timeout(), "{kind}: {error}");
            drop(near);
            // It receives nothing more.
            assert!(following.join().unwrap().is_err());
        }
    }
}

#[test]
fn duplicates_are_counted_once_each_and_nothing_else_is() {
    for kind in KINDS {
        let (messages, [lost, duplicated, misordered, corrupt]) =
            verdict(kind, 16, Some(Fault::Duplicate(10)));
        assert_eq!([lost, misordered, corrupt], [0; 3], "{kind}");
        assert!(
            duplicated >= (messages - 200) / 12,
            "{kind}: {duplicated} of {messages}"
        );
    }
}

#[test]
fn wrong_turns_are_counted_as_such() {
    for bytes in [2, 8, 64] {
        let (messages, [lost, duplicated, misordered, corrupt]) =
            verdict(Kind::Stream, bytes, Some(Fault::Swap(10)));
        assert_eq!([duplicated, corrupt], [0; 2], "{bytes} B");
        // The last of a block, when held back, comes with the next block or not at all.
        assert!(lost <= 1, "{bytes} B: {lost}");
        assert!(
            misordered.abs_diff((messages - 100) / 10) <= 1,
            "{bytes} B: {misordered}"
        );
    }
}

#[test]
fn damage_of_contents_and_of_length_is_corrupt() {
    for kind in KINDS {
        for fault in [Fault::Corrupt, Fault::Shorten, Fault::Lengthen] {
            let (messages, faults) = verdict(kind, 64, Some(fault));
            let sides = if kind == Kind::Pingpong { 2 } else { 1 };
            assert_eq!(faults, [0, 0, 0, messages - sides * 100], "{kind} {fault:?}");
        }
    }
}

#[test]
fn spoilt_messages_are_found_in_every_load() {
    for kind in KINDS {
        let plan = Plan {
            verify: true,
            spoil: Some(50),
            ..plan(kind, &[1, 8, 512], 600)
        };
        for row in run(&plan, u64::MAX).unwrap() {
            let v = row.verified.unwrap();
            let ours = if kind == Kind::Pingpong {
                v.messages / 2
            } else {
                v.messages
            };
            assert!(v.corrupt.abs_diff(ours / 50) <= 1 && v.lost == 0, "{kind}: {v}");
        }
    }
}

fn open_loop(asked: Asked, seconds: f64, pair: (Channels, Channels)) -> Vec<Row> {
    let plan = Plan {
        open: Some(asked),
        samples: None,
        seconds,
        ..plan(Kind::Pingpong, &[16], 1)
    };
    run_over(&plan, pair).unwrap()
}

#[test]
fn an_open_loop_sends_at_the_given_rate() {
    let rows = open_loop(
        Asked::PerSecond(2_000.0),
        0.5,
        pair(Fault::Corrupt, u64::MAX, false),
    );
    let open = rows[0].open.as_ref().unwrap();
    assert_eq!((rows.len(), open.asked_per_second), (1, 2_000.0));
    // Half a second of it, give or take the slice that was under way.
    assert!((400..=1_600).contains(&open.sent), "{}", open.sent);
    assert_eq!(rows[0].samples, open.sent);
    assert!(rows[0].half_rtt_ns.p50.is_none() && rows[0].rtt_ns.p50.is_some());
    // What is counted from the intended time is never less than what is counted from the actual one.
    assert!(rows[0].rtt_ns.p50 >= open.actual_rtt_ns.p50);
    assert!(rows[0].repeats.len() >= 5, "{}", rows[0].repeats.len());
}

/// Wherever a stall is, it is in the mean, in the maximum and in the histogram.
#[test]
fn a_stall_of_a_closed_loop_is_in_every_figure() {
    let stall = Duration::from_millis(30);
    for (after, verify) in [(500, false), (1_500, false), (500, true)] {
        let (mut near, mut far) = patient(Fault::Hang(stall), after, false);
        let following =
            std::thread::spawn(move || follow(&mut Session::new(&mut far, &Clock::system()), Vec::new));
        let clock = Clock::system();
        let mut session = Session::new(&mut near, &clock);
        if verify {
            session.verify(None);
        }
        let mut load = super::pingpong::Pingpong::new(session.link, 16, verify).unwrap();
        let (mut all, mut nanos) = (crate::stats::Recorder::new(), 0.0);
        while all.samples() < 2_000 {
            let wanted = Some(2_000 - all.samples());
            let slice = load.slice(&mut session, 1_000.0, f64::INFINITY, wanted).unwrap();
            assert_eq!(slice.samples, slice.recorder.samples());
            all.merge(&slice.recorder);
            nanos += slice.nanos;
        }
        session.quit().unwrap();
        following.join().unwrap().unwrap();
        let of = all.percentiles();
        let (mean, max) = (of.mean.unwrap(), of.max.unwrap());
        // Every nanosecond is in some sample.
        let sum = mean * all.samples() as f64;
        assert!((sum / nanos - 1.0).abs() < 1e-6, "{sum} of {nanos}");
        assert!(
            max >= 0.99 * stall.as_nanos() as f64 && mean <= max,
            "{after}: {of:?}"
        );
        assert!(all.above(stall.as_nanos() as u64 * 9 / 10) >= 1);
    }
}

/// A slice was planned with exchanges of a microsecond, and they take a thousand: as when a core was taken
/// away.
#[test]
fn what_has_become_a_thousand_times_slower_ends_with_its_time() {
    let slow = Fault::Slow(Duration::from_millis(1));
    for (verify, ends_early) in [(false, true), (true, true), (false, false)] {
        let (mut near, mut far) = patient(slow, 50, false);
        near.ends_early = ends_early;
        let following =
            std::thread::spawn(move || follow(&mut Session::new(&mut far, &Clock::system()), Vec::new));
        let clock = Clock::system();
        let mut session = Session::new(&mut near, &clock);
        if verify {
            session.verify(None);
        }
        let mut load = super::pingpong::Pingpong::new(session.link, 16, verify).unwrap();
        // 50,000 exchanges were planned, and there is time for 200 of them.
        let slice = load.slice(&mut session, 1_000.0, 200e6, None).unwrap();
        assert!((1..5_000).contains(&slice.samples), "{}", slice.samples);
        assert_eq!(slice.samples, slice.recorder.samples());
        // The next one is whole.
        let next = load.slice(&mut session, 1e6, 20e6, None).unwrap();
        assert!(next.samples > 0);
        session.quit().unwrap();
        following.join().unwrap().unwrap();
    }
    for bytes in [8, 20_000] {
        let (mut near, mut far) = patient(slow, 0, true);
        far.after = u64::MAX;
        near.after = 50;
        let following =
            std::thread::spawn(move || follow(&mut Session::new(&mut far, &Clock::system()), Vec::new));
        let clock = Clock::system();
        let mut session = Session::new(&mut near, &clock);
        let flow = Flow {
            window: 16,
            posted: false,
            plain: false,
        };
        let mut load = super::stream::Stream::new(session.link, bytes, flow, false).unwrap();
        let slice = load.slice(&mut session, 1_000.0, 200e6, None).unwrap();
        assert!((1..5_000).contains(&slice.samples), "{}", slice.samples);
        session.quit().unwrap();
        following.join().unwrap().unwrap();
    }
}

/// While the sender is stopped for 60 ms, 120 messages should have left. A closed loop would have counted
/// one.
#[test]
fn a_stall_counts_for_every_message_that_should_have_left_during_it() {
    let stall = patient(Fault::Stall(Duration::from_millis(60)), 300, true);
    // The warm-up sends some hundreds: the stall is in it or behind, so it is made to be in the loop alone.
    let (mut near, far) = stall;
    near.after = u64::MAX;
    let plan = Plan {
        open: Some(Asked::PerSecond(2_000.0)),
        samples: None,
        seconds: 0.3,
        ..plan(Kind::Pingpong, &[16], 1)
    };
    let following = std::thread::spawn(move || {
        let mut far = Channels {
            fault: Fault::Corrupt,
            after: u64::MAX,
            ..far
        };
        follow(&mut Session::new(&mut far, &Clock::system()), Vec::new)
    });
    let clock = Clock::system();
    let mut session = Session::new(&mut near, &clock);
    let mut load = super::open::OpenLoop::new(session.link, 16).unwrap();
    load.set_rate(2_000.0);
    session.link.after = session.link.sent + 100;
    let slice = load.slice(&mut session, plan.seconds * 1e9, None).unwrap();
    session.quit().unwrap();
    following.join().unwrap().unwrap();
    let (counted, actual) = slice.open.unwrap();
    let slow = 10_000_000;
    assert!(
        slice.recorder.above(slow) >= 90,
        "{} waited",
        slice.recorder.above(slow)
    );
    assert!(
        counted.late >= 100 && counted.latest_ns >= 59_000_000,
        "{counted:?}"
    );
    // What the machine takes beside is in both times of a message, or in the first alone: their difference is
    // at least the stall of each of the 120, the first of which are 60 ms late.
    let total = |of: &crate::stats::Recorder| of.percentiles().mean.unwrap() * of.samples() as f64;
    let apart = total(&slice.recorder) - total(&actual);
    assert!(apart >= 120.0 * 29e6, "{apart} ns, {counted:?}");
    let open = load.report(&counted, &actual);
    assert!(!open.kept_up(), "the stall is the generator's");
}

#[test]
fn the_knee_of_a_slow_peer_is_found_and_its_shares_are_measured() {
    // 400 µs for each answer: 2,500 a second.
    let (near, mut far) = patient(Fault::Slow(Duration::from_micros(400)), 0, false);
    far.after = 0;
    let rows = open_loop(Asked::Knee, 0.2, (near, far));
    assert_eq!(rows.len(), SHARES.len());
    for (row, share) in rows.iter().zip(SHARES) {
        let open = row.open.as_ref().unwrap();
        let knee = open.knee_per_second.unwrap();
        // The machine may be busy and the knee low; above the truth it cannot be by more than a trial's
        // tolerance.
        assert!(knee > 1.0 && knee <= 2_600.0, "{knee}");
        assert_ne!(open.knee_limit, Some(KneeLimit::NotReached));
        assert!((open.asked_per_second / knee - share).abs() < 1e-9);
    }
    let rows = open_loop(Asked::PerSecond(20_000.0), 0.3, {
        let (near, far) = patient(Fault::Slow(Duration::from_micros(400)), 0, false);
        (near, far)
    });
    let open = rows[0].open.as_ref().unwrap();
    assert!(
        !open.sustained() && open.answered_per_second.unwrap() < 2_600.0,
        "{open:?}"
    );
}

#[test]
fn an_open_loop_is_verified_like_the_others() {
    let plan = Plan {
        open: Some(Asked::PerSecond(5_000.0)),
        verify: true,
        ..plan(Kind::Pingpong, &[8, 64], 500)
    };
    for row in run(&plan, u64::MAX).unwrap() {
        let v = row.verified.unwrap();
        assert!(v.is_clean() && v.messages >= 1_000, "{v}");
    }
    for (fault, of) in [
        (Fault::Duplicate(10), 1usize),
        (Fault::Corrupt, 3),
        (Fault::Lose(40), 0),
    ] {
        let v = run_over(&plan, pair(fault, 400, true)).unwrap()[0]
            .verified
            .unwrap();
        let counts = [v.lost, v.duplicated, v.misordered, v.corrupt];
        assert!(counts[of] > 0, "{fault:?}: {v}");
    }
}

#[test]
fn one_way_is_measured_by_one_clock_and_not_by_two_that_are_not_compared_well() {
    let one_way = |other: bool| {
        let (mut near, mut far) = pair(Fault::Corrupt, u64::MAX, false);
        let following = std::thread::spawn(move || {
            let clock = Clock::system();
            let mut session = Session::new(&mut far, &clock);
            if other {
                session.identity = Identity("another machine".to_owned());
            }
            follow(&mut session, Vec::new)
        });
        let clock = Clock::system();
        let mut session = Session::new(&mut near, &clock);
        let plan = Plan {
            one_way: true,
            ..plan(Kind::Pingpong, &[8], 500)
        };
        let rows = lead(&mut session, &plan, &mut ()).unwrap();
        let reason = session.no_one_way().map(str::to_owned);
        session.quit().unwrap();
        following.join().unwrap().unwrap();
        (rows[0].one_way.clone(), reason)
    };
    let (figures, reason) = one_way(false);
    let figures = figures.unwrap();
    assert!(reason.is_none() && figures.clocks.contains("one clock"));
    assert!(
        figures.there_ns.p50.unwrap() > figures.bound_ns && figures.bound_ns > 0.0 && figures.samples >= 20
    );
    // Two clocks: a figure with the bound of its exchanges, or a reason.
    match one_way(true) {
        (Some(figures), None) => {
            assert!(
                figures.clocks.contains("two clocks") && figures.bound_ns < figures.there_ns.p50.unwrap()
            );
        }
        (None, Some(reason)) => assert!(reason.contains("agree within"), "{reason}"),
        both => panic!("{both:?}"),
    }
}

#[test]
fn a_plan_that_cannot_be_carried_out_is_refused_before_any_message() {
    assert!(matches!(
        run(&plan(Kind::Stream, &[], 1), u64::MAX),
        Err(BenchError::BadPlan { .. })
    ));
}
