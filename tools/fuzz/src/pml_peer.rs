//! A PML and a peer that sends whatever it likes, above a rail that hands over what it is given. Receives end
//! with messages that match them, what is kept stays within its bound, and no byte outside of a buffer is
//! written.

use doorbell_fabric::memory::Region;
use doorbell_fabric::message::PeerIndex;
use doorbell_fabric::time::Time;
use doorbell_pml::{
    Payload, Pml, PmlError, RailId, Rank, RecvArgs, RequestId, SendArgs, SendMode, Sent, Source, Target,
};

use crate::fed;
use crate::fed::feed::FeedRail;
use crate::script::Script;

/// Most steps of a script.
const STEPS: usize = 400;
/// Bytes of the memory; no message may change the first and the last kibibyte.
const MEMORY: usize = 20 << 10;
const EDGE: usize = 1 << 10;

/// A receive that was posted.
struct Posted {
    id: RequestId,
    from: Source,
    tag: u64,
    ignore: u64,
    room: usize,
}

struct Victim {
    pml: Pml<FeedRail>,
    memory: Region,
    receives: Vec<Posted>,
    sends: Vec<RequestId>,
}

impl Victim {
    fn new(settings: u8) -> Self {
        let pml = fed::pml(settings);
        let memory = Region::new(MEMORY).expect("memory");
        memory.write(0, &[0x55; EDGE]);
        memory.write(MEMORY - EDGE, &[0x55; EDGE]);
        Self {
            pml,
            memory,
            receives: Vec::new(),
            sends: Vec::new(),
        }
    }

    fn receive(&mut self, script: &mut Script<'_>) {
        if self.receives.len() == 16 {
            return;
        }
        let choice = script.byte();
        let from = match choice % 4 {
            0 => Source::Any,
            1 => Source::Rank(Rank(2)),
            _ => Source::Rank(Rank(1)),
        };
        let (tag, ignore) = (u64::from(choice >> 4 & 3), if choice & 128 == 0 { 0 } else { 3 });
        let room = script.below(MEMORY - 2 * EDGE + 1);
        let slice = self.memory.slice(EDGE, room).expect("inside");
        let args = RecvArgs {
            from,
            context: 0,
            tag,
            ignore,
            target: Target::Region(slice),
            notify: false,
        };
        if let Ok(id) = self.pml.recv(args) {
            self.receives.push(Posted {
                id,
                from,
                tag,
                ignore,
                room,
            });
        }
    }

    fn send(&mut self, script: &mut Script<'_>) {
        if self.sends.len() == 16 {
            return;
        }
        let choice = script.byte();
        let length = script.below(MEMORY - 2 * EDGE + 1);
        let args = SendArgs {
            to: Rank(1 + u32::from(choice & 1)),
            context: 0,
            tag: u64::from(choice >> 4 & 3),
            payload: Payload::Region(self.memory.slice(EDGE, length).expect("inside")),
            mode: if choice & 2 == 0 {
                SendMode::Standard
            } else {
                SendMode::Synchronous
            },
            notify: false,
        };
        if let Ok(Sent::Pending(id)) = self.pml.send(args) {
            self.sends.push(id);
        }
    }

    /// A frame: a kind, numbers that would do or nearly, and whatever bytes.
    fn frame(&mut self, script: &mut Script<'_>) {
        let (kind, flags, choice) = (script.byte() % 18, script.byte(), script.byte());
        let expected = self.pml.counters().arrived;
        let mut frame = vec![kind, flags, u8::from(choice & 15 == 0), 0];
        frame.extend_from_slice(&(script.near(expected) as u32).to_le_bytes());
        frame.extend_from_slice(&u64::from(choice >> 4 & 3).to_le_bytes());
        for _ in 0..script.below(8) {
            let number = match script.byte() {
                0..96 => self.known(script),
                96..160 => u64::from(script.short()),
                _ => script.any(),
            };
            frame.extend_from_slice(&number.to_le_bytes());
        }
        let length = script.below(2048);
        frame.extend_from_slice(script.take(length));
        if choice & 15 == 1 {
            frame.truncate(script.below(80));
        }
        let peer = if choice & 15 == 2 {
            u32::from(script.byte() % 4)
        } else {
            0
        };
        let rail = self.pml.rail_mut(RailId(0)).expect("the rail");
        rail.frames.push_back((PeerIndex(peer), frame));
    }

    /// The number of a request that lives, perhaps.
    fn known(&self, script: &mut Script<'_>) -> u64 {
        let all: Vec<u64> = (self.receives.iter().map(|posted| posted.id))
            .chain(self.sends.iter().copied())
            .map(RequestId::to_bits)
            .collect();
        match all.as_slice() {
            [] => script.any(),
            all => all[script.below(all.len())],
        }
    }

    fn pass(&mut self, script: &mut Script<'_>) {
        self.pml.rail_mut(RailId(0)).expect("the rail").full = script.byte() & 7 == 0;
        self.pml.poll();
        self.pml.progress(Time::ZERO);
        self.sends.retain(|id| self.pml.test(*id).is_none());
        let mut receives = std::mem::take(&mut self.receives);
        receives.retain(|posted| match self.pml.test(posted.id) {
            None => true,
            Some(outcome) => {
                judge(posted, outcome);
                false
            }
        });
        self.receives = receives;
        fed::judge_kept(&self.pml);
    }

    fn abort(&mut self, script: &mut Script<'_>) {
        if !self.receives.is_empty() {
            let posted = self.receives.swap_remove(script.below(self.receives.len()));
            let _ = self.pml.abort(posted.id);
        }
    }
}

/// Whether what ended a receive may have done so.
fn judge(posted: &Posted, outcome: Result<doorbell_pml::Status, PmlError>) {
    match outcome {
        Ok(status) => {
            assert!(
                status.length <= posted.room as u64,
                "{status:?} in {} bytes",
                posted.room
            );
            assert_eq!(
                (status.tag ^ posted.tag) & !posted.ignore,
                0,
                "the tag does not match"
            );
            if let Source::Rank(rank) = posted.from {
                assert_eq!(status.source, rank, "the source does not match");
            }
        }
        Err(PmlError::Truncated { length, room, .. }) => assert!(length > room, "{length} fits into {room}"),
        Err(_) => {}
    }
}

/// Runs a script.
pub fn run(input: &[u8]) {
    let mut script = Script::new(input);
    let mut victim = Victim::new(script.byte());
    for _ in 0..STEPS {
        if script.is_over() {
            break;
        }
        match script.byte() {
            0..112 => victim.frame(&mut script),
            112..144 => victim.receive(&mut script),
            144..176 => victim.send(&mut script),
            176..184 => victim.abort(&mut script),
            _ => victim.pass(&mut script),
        }
    }
    victim.pass(&mut script);
    let mut bytes = [0; MEMORY];
    victim.memory.read(0, &mut bytes);
    let mut outside = bytes[..EDGE].iter().chain(&bytes[MEMORY - EDGE..]);
    assert!(outside.all(|byte| *byte == 0x55), "a byte outside was written");
}
