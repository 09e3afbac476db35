//! devcmd2: commands in a ring, results in another, colours and wraps.

use crate::client::{CAPABILITY, Client, DEVCMD2, MAC_ADDR, model, until};
use doorbell_vic::Kind;

const COMMANDS: u64 = 0x10_0000;
const RESULTS: u64 = 0x20_0000;
const INITIALIZE: u32 = 0x4001_C039;

struct Ring {
    vf: Client,
    at: u64,
    posted: u32,
    next: u32,
    color: u8,
}

impl Ring {
    fn new(vf: Client) -> Self {
        let at = vf.find(DEVCMD2, 0);
        let mut ring = Self {
            vf,
            at,
            posted: 0,
            next: 0,
            color: 1,
        };
        ring.vf.share(COMMANDS, 4096);
        ring.vf.share(RESULTS, 4096);
        ring.vf.write32(at + 0x20, 0);
        ring.vf.write64(at, COMMANDS);
        ring.vf.write32(at + 8, 32);
        ring.vf.write32(at + 0x20, 1);
        until("it runs", || ring.vf.read32(at + 0x28) == 1);
        ring
    }

    fn post(&mut self, command: u32, flags: u16, args: &[u64]) {
        let mut entry = [0; 128];
        entry[2..4].copy_from_slice(&flags.to_le_bytes());
        entry[4..8].copy_from_slice(&command.to_le_bytes());
        for (bytes, arg) in entry[8..].chunks_exact_mut(8).zip(args) {
            bytes.copy_from_slice(&arg.to_le_bytes());
        }
        self.vf.mem_write(COMMANDS + 128 * u64::from(self.posted), &entry);
        self.posted = (self.posted + 1) % 32;
        self.vf.write32(self.at + 0x10, self.posted);
    }

    /// The next result: its first word, the command's slot, its error.
    fn result(&mut self) -> (u64, u16, u8) {
        let mut entry = [0; 128];
        until("a result", || {
            self.vf.mem_read(RESULTS + 128 * u64::from(self.next), &mut entry);
            entry[127] == self.color
        });
        self.next += 1;
        if self.next == 32 {
            (self.next, self.color) = (0, self.color ^ 1);
        }
        (
            u64::from_le_bytes(entry[..8].try_into().unwrap()),
            u16::from_le_bytes([entry[124], entry[125]]),
            entry[126],
        )
    }
}

#[test]
fn commands_go_round_the_ring() {
    let (model, _folder) = model(|options| {
        options.layout.devcmd2 = true;
        options.timing.devcmd = std::time::Duration::from_micros(10);
    });
    let mut ring = Ring::new(Client::new(&model, "vf1"));
    ring.post(INITIALIZE, 0, &[RESULTS, 32]);
    assert_eq!(ring.result(), (RESULTS, 0, 0));
    for round in 1..100u16 {
        let (command, wanted) = match round % 3 {
            0 => (0x4000_0fff, (0, 5)),
            1 => (MAC_ADDR, (0x0243_4956_0002, 0)),
            _ => (CAPABILITY, (0, 0)),
        };
        ring.post(command, 0, &[MAC_ADDR.into()]);
        assert_eq!(ring.result(), (wanted.0, round % 32, wanted.1), "{round}");
    }
    // One without a result, and the next one's comes all the same.
    ring.post(MAC_ADDR, 1, &[]);
    ring.post(MAC_ADDR, 0, &[]);
    assert_eq!(ring.result().1, 101 % 32);
    assert_eq!(ring.vf.read32(ring.at + 0x30), 102 % 32, "fetch_index follows");
    assert_eq!(
        model.violations().counts().into_keys().collect::<Vec<_>>(),
        [Kind::Devcmd]
    );
    // The first block answers, too.
    assert!(ring.vf.devcmd(MAC_ADDR, &[]).is_ok());
}

#[test]
fn a_ring_that_cannot_be_used_stops() {
    let (model, _folder) = model(|options| options.layout.devcmd2 = true);
    let mut ring = Ring::new(Client::new(&model, "vf0"));
    let at = ring.at;
    ring.vf.write32(at + 0x10, 32);
    until("it stops", || ring.vf.read32(at + 0x28) == 0);
    assert_eq!(model.violations().count(Kind::PostedBeyondRing), 1);
    ring.vf.write64(at, 0xdead_0000);
    ring.vf.write32(at + 0x10, 1);
    ring.vf.write32(at + 0x20, 1);
    until("it stops again", || {
        model.violations().count(Kind::DmaUnmapped) == 1
    });
}
