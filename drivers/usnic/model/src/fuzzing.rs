//! Clients that do anything at all, without threads or sockets of others: for the fuzzers and the tests.
//!
//! A script's bytes choose what two clients do: registers, memory, messages, frames from the wire, faults. A
//! third function is mapped and does nothing, and nothing must reach it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{MemfdFlags, SealFlags};
use rustix::net::{AddressFamily, RecvFlags, SocketFlags, SocketType};

use crate::fault::{Bounds, Faults, script};
use crate::line::{Line, Message};
use crate::options::{Behaviour, Options, Policy, Timing, Trap};
use crate::registers::resource;
use crate::switch::Port;
use crate::violation::Violations;
use crate::wire::{Header, command};
use crate::world::World;

/// Bytes of each client's memory, at bus address 0.
const MEMORY: usize = 64 << 10;
/// Later than anything that is waited for.
const LATE: u64 = u64::MAX / 4;
/// The functions: the physical one, one that is driven by the script, and one that does nothing.
const FUNCTIONS: usize = 3;

/// The bytes of a script; zeroes behind its end.
struct Script<'a>(&'a [u8]);

impl Script<'_> {
    fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else {
            return 0;
        };
        self.0 = rest;
        *first
    }

    fn word(&mut self) -> u32 {
        u32::from_le_bytes([self.byte(), self.byte(), self.byte(), self.byte()])
    }

    /// Mostly numbers that mean something.
    fn value(&mut self) -> u32 {
        match self.byte() {
            small @ 0..=127 => small.into(),
            kind @ 128..=199 => 1 << (kind % 32),
            200..=229 => u32::from(self.byte()) << 9,
            _ => self.word(),
        }
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        let count = usize::from(self.byte()).min(most);
        (0..count).map(|_| self.byte()).collect()
    }
}

struct Scene {
    world: World,
    now: u64,
    /// The other ends of the lines, and the files of the clients' memory.
    ends: Vec<(OwnedFd, OwnedFd)>,
}

/// Plays a script.
///
/// # Panics
/// When something does not hold that must, or cannot be made.
pub fn run(input: &[u8]) {
    let script = &mut Script(input);
    let mut scene = Scene::new(script.byte());
    while !script.0.is_empty() {
        scene.step(script);
        scene.check();
    }
    let mut still = vec![0; MEMORY];
    let read = rustix::io::pread(&scene.ends[FUNCTIONS - 1].1, &mut still, 0);
    assert!(
        read == Ok(MEMORY) && still.iter().all(|byte| *byte == 0),
        "no function writes another's memory"
    );
}

impl Scene {
    fn new(choices: u8) -> Self {
        let has = |bit: u8| choices & 1 << bit != 0;
        let mut options = Options {
            vfs: FUNCTIONS - 1,
            most_maps: 8,
            ..Options::default()
        };
        options.timing = Timing {
            devcmd: Duration::ZERO,
            nowait: Duration::ZERO,
            two_part: Duration::ZERO,
            enable: Duration::ZERO,
            disable: Duration::ZERO,
            recheck: if has(0) {
                Duration::from_nanos(1)
            } else {
                Duration::ZERO
            },
        };
        options.trap = if has(1) { Trap::All } else { Trap::None };
        options.policy = if has(2) { Policy::Real } else { Policy::Permissive };
        options.layout.devcmd2 = true;
        options.layout.mem = 100;
        options.behaviour = Behaviour {
            filter_type: 3,
            filters: 4,
            stale_cache: has(3),
            strict_disable: has(4),
            future: has(4),
            strict_hint: has(5),
            loose_access: has(5),
            silent_drop: has(6),
            gated_by_credits: has(6),
            skip_unused: !has(7),
            ..Behaviour::default()
        };
        let world =
            World::new(options, Violations::default(), Faults::default(), None).expect("room for registers");
        let mut scene = Self {
            world,
            now: LATE,
            ends: Vec::new(),
        };
        for index in 0..FUNCTIONS {
            scene.attach(index);
        }
        scene
    }

    fn attach(&mut self, index: usize) {
        let flags = SocketFlags::CLOEXEC;
        let (ours, theirs) =
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::STREAM, flags, None).expect("a socket");
        let file = rustix::fs::memfd_create("client", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)
            .expect("a file");
        rustix::fs::ftruncate(&file, MEMORY as u64).expect("room");
        rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK).expect("a new file");
        let same = rustix::io::dup(&file).expect("a descriptor");
        self.world.attach(index, Arc::new(Line::new(ours)));
        let io = &mut self.world.functions[index].io;
        io.memory
            .map(0, MEMORY as u64, (true, true), Some((same, 0)))
            .expect("nothing is mapped");
        io.config.write(4, &[6, 0]).expect("it is inside");
        self.ends.push((theirs, file));
    }

    fn step(&mut self, script: &mut Script<'_>) {
        let kind = script.byte();
        // The last function is left alone.
        let index = usize::from(kind >> 4) % (FUNCTIONS - 1);
        match kind & 15 {
            0..=4 => self.register(index, script),
            5..=7 => self.memory(index, script),
            8..=9 => self.message(index, script),
            10 => self.queue(index, script),
            11 => self.frame(script),
            12 => self.fault(script),
            _ => {
                // So much later that everything is looked at.
                self.now += 1_000_000;
                self.world.turn(self.now);
            }
        }
    }

    /// Writes a register, in memory or by message.
    fn register(&mut self, index: usize, script: &mut Script<'_>) {
        let kinds = [
            resource::WQ,
            resource::RQ,
            resource::CQ,
            resource::INTR_CTRL,
            resource::DEVCMD,
            resource::DEVCMD2,
        ];
        let kind = kinds[usize::from(script.byte()) % kinds.len()];
        let instance = usize::from(script.byte() & 1);
        let function = &mut self.world.functions[index];
        let Some(block) = function.layout.find(kind, instance) else {
            return;
        };
        let at = block + usize::from(script.byte() & 31) * 4;
        let value = script.value();
        if self.world.context.options.trap == Trap::All {
            // Outside of it is refused, which is fine.
            let _ = function.write_registers(&self.world.context, at, &value.to_le_bytes());
        } else {
            function.io.registers.put(at, value);
        }
    }

    fn memory(&mut self, index: usize, script: &mut Script<'_>) {
        let at = u64::from(script.word() as u16);
        let bytes = script.bytes(64);
        let count = bytes.len().min(MEMORY - at as usize);
        rustix::io::pwrite(&self.ends[index].1, &bytes[..count], at).expect("it is inside");
    }

    fn message(&mut self, index: usize, script: &mut Script<'_>) {
        // The file that it maps would be shared with itself: maps come without one here, and then go to
        // messages, which cost time.
        let number = match u16::from(script.byte() % 15) {
            command::DMA_MAP => 0,
            number => number,
        };
        let body = script.bytes(120);
        let header = Header {
            number: 1,
            command: number,
            length: body.len(),
            is_reply: false,
            is_error: false,
            wants_reply: true,
        };
        self.world.message(
            index,
            Message {
                header,
                body,
                files: Vec::new(),
            },
        );
        self.drain(index);
    }

    /// Takes what was answered, so that the line does not fill.
    fn drain(&self, index: usize) {
        let mut room = [0; 4096];
        while rustix::net::recv(self.ends[index].0.as_fd(), &mut room, RecvFlags::DONTWAIT)
            .is_ok_and(|(count, _)| count > 0)
        {}
    }

    /// Sets a queue pair up as a driver would, so that scripts come further.
    fn queue(&mut self, index: usize, script: &mut Script<'_>) {
        let count = [32, 64, 512][usize::from(script.byte()) % 3];
        let function = &mut self.world.functions[index];
        let find = |kind| function.layout.find(kind, 0).expect("there is one");
        let (wq, rq, cq) = (find(resource::WQ), find(resource::RQ), find(resource::CQ));
        let registers = &function.io.registers;
        for (ring, base) in [(wq, 0x1000), (rq, 0x4000), (cq, 0x8000)] {
            registers.put64(ring, base);
            registers.put(ring + 8, count);
        }
        registers.put(cq + 0x18, 1);
        registers.put(cq + 0x30, 1);
        registers.put(cq + 0x40, 1);
        for ring in [wq, rq] {
            registers.put(ring + 0x20, 1);
        }
        // A queue pair below the first.
        let _ = function.enable_qp(&self.world.context, 0);
    }

    fn frame(&mut self, script: &mut Script<'_>) {
        let to = self.world.functions[usize::from(script.byte() & 1)].mac;
        let bytes = script.bytes(200);
        self.world.room[..6].copy_from_slice(&to);
        self.world.room[6..6 + bytes.len()].copy_from_slice(&bytes);
        let length = (6 + bytes.len()).max(14);
        self.world.forward(Port::Bridge, length);
    }

    fn fault(&mut self, script: &mut Script<'_>) {
        const RULES: &[&str] = &[
            "every 2 frames switch corrupt times 9",
            "every 3 frames switch fragment times 9",
            "every 2 frames switch pad 9000 times 9",
            "every 2 frames switch reorder times 9",
            "every 2 frames switch tag times 9",
            "every 2 frames switch bad-udp times 9",
            "every 2 frames switch foreign-port times 9",
            "every 2 completions vf*.cq color-late 1us times 9",
            "every 2 completions vf*.cq color-early 1us times 9",
            "every 2 enables vf*.rq stale times 9",
            "every 2 frames vf*.rq truncate times 9",
            "every 2 doorbells vf*.wq lost-doorbell times 9",
            "every 2 interrupts vf*.intr late 1us times 9",
            "at 0s link down",
            "at 0s link up",
            "at 0s link torn 1us",
            "at 0s vf0 table-cut 5",
            "at 0s vf0 missing 1",
            "at 0s vf0 removed",
            "at 0s pf reset",
        ];
        let rule = RULES[usize::from(script.byte()) % RULES.len()];
        let rules = script::parse(rule, &Bounds::of(FUNCTIONS)).expect("it is one of ours");
        self.world.context.faults.add(rules);
    }

    /// Checks what holds whatever clients do.
    fn check(&self) {
        assert!(!self.world.is_over);
        for function in &self.world.functions {
            let rings = function
                .wq
                .iter()
                .map(|wq| &wq.ring)
                .chain(function.rq.iter().map(|rq| &rq.ring));
            for ring in rings.filter(|ring| ring.is_running()) {
                assert!(ring.size <= 4096 && ring.fetch < ring.size && ring.posted < ring.size);
                assert!(ring.cq < function.cq.len());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(300))]
        #[test]
        fn whatever_clients_do_is_taken(script in prop::collection::vec(any::<u8>(), 0..600)) {
            run(&script);
        }
    }

    #[test]
    fn the_way_of_a_frame_is_reached() {
        // One function's pair, a descriptor of 60 bytes with its end, a doorbell, turns.
        let mut script = vec![2u8 << 1, 0x1a, 0];
        script.extend([
            0x15, 0, 0x10, 0, 0, 16, 0, 0x20, 0, 0, 0, 0, 0, 0, 60, 0, 0, 0, 0, 0x30, 0, 0,
        ]);
        script.extend([0x1f; 10]);
        script.extend([0x10, 0, 0, 4, 1]);
        script.extend([0x1f; 10]);
        let mut scene = Scene::new(script[0]);
        let mut rest = Script(&script[1..]);
        while !rest.0.is_empty() {
            scene.step(&mut rest);
        }
        assert_eq!(
            scene.world.functions[1].stats.tx.ok,
            1,
            "{:?}",
            scene.world.context.violations.list()
        );
    }
}
