//! The loads between two threads over channels: the protocol of orders, the accounting, and damaged messages.

use std::sync::mpsc::{Receiver, Sender, channel};

use doorbell_fabric::clock::Clock;

use super::{Session, follow, lead};
use crate::error::BenchError;
use crate::link::{Flow, Link, Sinks};
use crate::plan::{Kind, Plan};
use crate::size::Size;

struct Channels {
    rank: u32,
    data: (Sender<Vec<u8>>, Receiver<Vec<u8>>),
    control: (Sender<Vec<u8>>, Receiver<Vec<u8>>),
    /// Damages every message after this many.
    damage_after: u64,
    sent: u64,
}

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
    fn send(&mut self, body: &[u8]) -> Result<(), BenchError> {
        let mut body = body.to_vec();
        self.sent += 1;
        if self.sent > self.damage_after {
            *body.last_mut().unwrap() ^= 1;
        }
        self.data.0.send(body).map_err(|_| gone())
    }
    fn recv(&mut self, into: &mut [u8]) -> Result<usize, BenchError> {
        let body = self.data.1.recv().map_err(|_| gone())?;
        into[..body.len()].copy_from_slice(&body);
        Ok(body.len())
    }
    fn stream_out(&mut self, body: &[u8], count: u64, _: Flow) -> Result<(), BenchError> {
        (0..count).try_for_each(|_| self.send(body))
    }
    fn stream_in(&mut self, sinks: &mut Sinks, count: u64, _: Flow) -> Result<(), BenchError> {
        for n in 0..count as usize {
            let at = n % sinks.count();
            self.recv(&mut sinks.buffers()[at])?;
        }
        Ok(())
    }
    fn tell(&mut self, text: &[u8]) -> Result<(), BenchError> {
        self.control.0.send(text.to_vec()).map_err(|_| gone())
    }
    fn hear(&mut self) -> Result<Vec<u8>, BenchError> {
        self.control.1.recv().map_err(|_| gone())
    }
}

fn pair(damage_after: u64) -> (Channels, Channels) {
    let (a, b, c, d) = (channel(), channel(), channel(), channel());
    let side = |rank, data, control, damage_after| Channels {
        rank,
        data,
        control,
        damage_after,
        sent: 0,
    };
    (
        side(0, (a.0, b.1), (c.0, d.1), u64::MAX),
        side(1, (b.0, a.1), (d.0, c.1), damage_after),
    )
}

/// Runs `plan` with the leader here and the follower in a thread.
fn run(plan: &Plan, damage_after: u64) -> Result<Vec<super::Row>, BenchError> {
    let (mut near, mut far) = pair(damage_after);
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
    assert_eq!(session.hear_follower()?, b"text of the follower");
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
    let error = run(&plan(Kind::Pingpong, &[16], 100), 1_000).unwrap_err();
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

#[test]
fn a_plan_that_cannot_be_carried_out_is_refused_before_any_message() {
    assert!(matches!(
        run(&plan(Kind::Stream, &[], 1), u64::MAX),
        Err(BenchError::BadPlan { .. })
    ));
}
