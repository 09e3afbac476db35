//! What a link does to a frame in flight: copies, corruption, and reordering.

use std::sync::Arc;
use std::time::Duration;

use doorbell_fabric::time::Time;

use crate::agenda::Due;
use crate::config::Faults;
use crate::fault::{Effect, Marks};
use crate::frame::FrameInFlight;
use crate::state::Net;

impl Net {
    /// Launches a frame, and its copies before it.
    pub(crate) fn multiply(&mut self, place: u32, leaves: Time, effect: Option<Effect>) {
        let (nic, link) = (self.frames[place].from, self.frames[place].link);
        let twice = self.faults(link).duplicate;
        if self.links[link as usize].random.chance(twice) || effect == Some(Effect::Duplicate) {
            self.stats(nic).duplicated += 1;
            let twin = self.twin(place, Marks::COPY);
            self.launch(twin, leaves, None);
        }
        if let Some(Effect::Replay(later)) = effect {
            self.stats(nic).replayed += 1;
            let twin = self.twin(place, Marks::REPLAYED);
            self.launch(twin, leaves, Some(Effect::Delay(later)));
        }
        self.launch(place, leaves, effect);
    }

    /// Puts a frame (or one copy of it) on its link.
    fn launch(&mut self, place: u32, leaves: Time, effect: Option<Effect>) {
        let link = self.frames[place].link;
        let faults = self.faults(link);
        self.damage(place, &faults, effect);
        let (mut at, mut held) = self.passage(link, leaves);
        let mut behind = 0;
        if held && faults.overtake > 0 {
            behind = 1 + self.links[link as usize].random.below(u64::from(faults.overtake)) as u32;
        }
        match effect {
            Some(Effect::Delay(later)) => (at, held) = (at + later, true),
            Some(Effect::Overtaken(others)) => (behind, held) = (others, true),
            _ => {}
        }
        if held {
            self.frames[place].marks.add(Marks::HELD);
        }
        if behind > 0 {
            let window = match faults.reorder_window {
                Duration::ZERO => Duration::from_millis(1),
                window => window,
            };
            self.hold(place, behind, leaves + faults.delay + faults.jitter + window);
            return;
        }
        self.agenda.push(at, Due::Frame { frame: place });
        if !held {
            self.overtake(link, at);
        }
    }

    /// Flips bits, cuts off, adds bytes.
    fn damage(&mut self, place: u32, faults: &Faults, effect: Option<Effect>) {
        let frame = &mut self.frames[place];
        let (nic, link) = (frame.from, frame.link);
        let random = &mut self.links[link as usize].random;
        let (first, count) = faults.corrupt_part.of(frame.bytes.len());
        let mut done = Marks::default();
        if count > 0 && (random.chance(faults.corrupt) || effect == Some(Effect::Corrupt)) {
            let bytes = Arc::make_mut(&mut frame.bytes);
            for _ in 0..=random.below(3) {
                let bit = random.below(count as u64 * 8);
                bytes[first + bit as usize / 8] ^= 1 << (bit % 8);
            }
            done.add(Marks::FLIPPED);
        }
        let length = frame.bytes.len();
        let shorter = match effect {
            Some(Effect::Truncate(to)) => to,
            _ if random.chance(faults.truncate) => random.below(length as u64) as usize,
            _ => length,
        };
        if shorter < length {
            Arc::make_mut(&mut frame.bytes).truncate(shorter);
            done.add(Marks::CUT_OFF);
        }
        let longer = match effect {
            Some(Effect::Lengthen(by)) => by,
            _ if random.chance(faults.lengthen) => 1 + random.below(64) as usize,
            _ => 0,
        };
        let room = self.config.mtu.saturating_sub(frame.bytes.len());
        if longer.min(room) > 0 {
            let more = std::iter::repeat_with(|| random.next_u64() as u8);
            Arc::make_mut(&mut frame.bytes).extend(more.take(longer.min(room)));
            done.add(Marks::LENGTHENED);
        }
        frame.marks.add(done);
        let stats = self.stats(nic);
        stats.corrupted += u64::from(done.has(Marks::FLIPPED));
        stats.truncated += u64::from(done.has(Marks::CUT_OFF));
        stats.lengthened += u64::from(done.has(Marks::LENGTHENED));
    }

    /// A frame waits until `behind` others have overtaken it, until `limit` at most.
    fn hold(&mut self, place: u32, behind: u32, limit: Time) {
        let frame = &mut self.frames[place];
        frame.behind = behind;
        let serial = frame.serial;
        self.links[frame.link as usize].held.push(place);
        self.agenda.push(limit, Due::Unhold { frame: place, serial });
    }

    /// A frame that arrives at `at` overtakes those that are held; who was overtaken often enough follows it.
    fn overtake(&mut self, link: u32, at: Time) {
        let frames = &mut self.frames;
        let agenda = &mut self.agenda;
        self.links[link as usize].held.retain(|&place| {
            let frame = &mut frames[place];
            frame.behind -= 1;
            if frame.behind == 0 {
                agenda.push(at, Due::Frame { frame: place });
            }
            frame.behind > 0
        });
    }

    pub(crate) fn unhold(&mut self, place: u32, serial: u64) {
        let waits = |frame: &FrameInFlight| frame.serial == serial && frame.behind > 0;
        if !self.frames.get(place).is_some_and(waits) {
            return;
        }
        let frame = &mut self.frames[place];
        frame.behind = 0;
        self.links[frame.link as usize].held.retain(|&held| held != place);
        self.frame_arrives(place);
    }

    /// Makes a copy of a frame; bytes are shared until one of the two is damaged.
    fn twin(&mut self, place: u32, mark: Marks) -> u32 {
        let frame = &self.frames[place];
        self.frames_made += 1;
        let mut marks = frame.marks;
        marks.add(mark);
        let twin = FrameInFlight {
            bytes: frame.bytes.clone(),
            region: None,
            serial: self.frames_made,
            marks,
            ..*frame
        };
        self.frames.insert(twin)
    }
}
