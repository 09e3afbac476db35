//! The dissector for Wireshark, run by tshark on frames of every kind, whole and damaged.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use doorbell_btl::{Btl, BtlConfig, JobKey};
use doorbell_fabric::datagram::{Channel, Datagram, Receive, Transmit};
use doorbell_fabric::memory::{Region, SharedBytes};
use doorbell_fabric::message::{
    Access, Arrivals, AtomicOp, Body, Exposure, Inbound, Landing, Message, OpError, OpId, PeerIndex,
};
use doorbell_fabric::pcapng::{Direction, Packet, Wrap, Writer};
use doorbell_fabric::rail::Rail;
use doorbell_fabric::time::Time;
use doorbell_sim::{Aim, Change, Effect, Faults, Pick, Plane, SimConfig, SimDatagram, SimNet};

const CONNECTION: u64 = 0x1122_3344_5566_7788;
const ACK: u8 = 1;
const URGENT: u8 = 2;
const CRC: u8 = 4;
const MAC: u8 = 8;

/// A frame, written out by hand: the layout is what is tested.
fn frame(kind: u8, flags: u8, sequence: u32, ack: u32, after: &[u8]) -> Vec<u8> {
    let mut bytes = CONNECTION.to_le_bytes().to_vec();
    bytes.extend(sequence.to_le_bytes());
    bytes.extend(ack.to_le_bytes());
    bytes.extend((after.len() as u16).to_le_bytes());
    bytes.extend([kind, 1 << 4 | flags]);
    bytes.extend([0; 4]);
    bytes.extend(after);
    if flags & CRC != 0 {
        let check = crc32c::crc32c(&bytes);
        bytes[20..24].copy_from_slice(&check.to_le_bytes());
    }
    if flags & MAC != 0 {
        bytes.extend(*b"mac-mac-");
    }
    bytes
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// The head of a MATCH of the PML, and a body.
fn message(tag: u64) -> Vec<u8> {
    let mut bytes = vec![1, 0, 3, 0, 9, 0, 0, 0];
    bytes.extend(tag.to_le_bytes());
    bytes.extend(b"body");
    bytes
}

/// One of each kind, in the order of their numbers.
fn every_kind() -> Vec<Vec<u8>> {
    let chunk = |body: &[u8]| {
        let mut bytes = 100_u32.to_le_bytes().to_vec();
        bytes.extend(5_000_u32.to_le_bytes());
        bytes.extend(1_400_u16.to_le_bytes());
        bytes.extend([0, 0]);
        bytes.extend(body);
        bytes
    };
    let put = [words(&[7, 0xfeed, 0x10000, 3000, 1200]), b"put".to_vec()].concat();
    let atomic = words(&[8, 0xfeed, 0x10008, 5, 6, 6]);
    // 41 and 42 arrived, and 44: 40 and 43 did not.
    let bitmap = [0b1_0110_u8, 0, 0, 0, 0, 0, 0, 0];
    vec![
        frame(1, ACK | CRC, 0, 39, &bitmap),
        frame(2, ACK | CRC | URGENT, 1, 40, &message(0x2a)),
        frame(3, CRC, 102, 0, &chunk(b"chunk")),
        frame(4, CRC, 103, 0, &put),
        frame(5, CRC, 104, 0, &words(&[9, 0xfeed, 0x10000, 3000])),
        frame(6, CRC, 105, 0, &[words(&[9, 1456]), b"data".to_vec()].concat()),
        frame(7, CRC, 106, 0, &atomic),
        frame(8, CRC, 107, 0, &words(&[8, 77, 1])),
        frame(9, MAC, 108, 0, &[]),
        frame(10, CRC, 0, 0, &words(&[0x0000_0048_0000_beef, 0, 0, 0, 0, 0])),
        frame(11, CRC, 0, 0, &words(&[0x0000_0048_0000_beef, 0, 0, 0, 0, 0])),
        frame(
            12,
            CRC,
            0,
            0,
            &[words(&[0x0000_0002_0000_0003]), vec![1, 0, 0, 0]].concat(),
        ),
        frame(13, CRC, 0, 0, b"sealed"),
    ]
}

/// Sends frames through a simulated network, and writes all of them to `path`.
fn capture(path: &Path, frames: &[Vec<u8>], faults: Faults) {
    let net = SimNet::new(1, SimConfig::default());
    net.change(Change::Faults(Plane::FIRST, faults));
    let (mut a, mut b) = (net.attach_datagram(), net.attach_datagram());
    let to_b = a.open(&b.address(), b.incarnation()).unwrap();
    net.dump(std::fs::File::create(path).unwrap());
    for bytes in frames {
        let (tx, _) = a.split();
        assert_eq!(tx.reserve(Channel::Data, 1), 1);
        tx.post(Channel::Data, to_b, &bytes[..24], Body::Bytes(&bytes[24..]))
            .unwrap();
        tx.doorbell();
        while net.advance_to_next_event().is_some() {}
        b.split().1.poll(Channel::Data, 64);
    }
    let end = net.end_dump().unwrap();
    assert!(end.error.is_none() && end.lost == 0);
}

/// Returns tshark's values of these fields of each frame; `None`, and a line in the list of skipped tests,
/// without tshark.
fn ask(test: &str, path: &Path, fields: &[&str]) -> Option<Vec<Vec<String>>> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../dissector/doorbell.lua");
    let mut command = Command::new("tshark");
    command
        .arg("-X")
        .arg(format!("lua_script:{}", script.display()))
        .arg("-r")
        .arg(path);
    command.args(["-n", "-T", "fields", "-E", "separator=|"]);
    fields.iter().for_each(|field| {
        command.args(["-e", field]);
    });
    let output = match command.output() {
        Ok(output) => output,
        Err(error) => {
            skip(test, &format!("package tshark: tshark: {error}"));
            return None;
        }
    };
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("aren't valid") && !lua_runs() {
        skip(
            test,
            "this tshark runs no Lua scripts (built without Lua, or not as root)",
        );
        return None;
    }
    assert!(output.status.success() && !errors.contains("Lua"), "{errors}");
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(!text.contains("Lua Error"), "{text}");
    let split = |line: &str| line.split('|').map(str::to_owned).collect();
    Some(text.lines().map(split).collect())
}

/// Whether tshark runs any Lua at all.
fn lua_runs() -> bool {
    let folder = tempfile::tempdir().unwrap();
    let script = folder.path().join("hello.lua");
    std::fs::write(&script, "print('lua runs')").unwrap();
    let output = Command::new("tshark")
        .arg("-X")
        .arg(format!("lua_script:{}", script.display()))
        .args(["-G", "currentprefs"])
        .output();
    output.is_ok_and(|output| String::from_utf8_lossy(&output.stdout).contains("lua runs"))
}

fn skip(test: &str, reason: &str) {
    doorbell_testing::skipped(&format!("doorbell-simulate::dissector::{test}"), reason);
}

#[test]
fn every_kind_with_every_field() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kinds.pcapng");
    capture(&path, &every_kind(), Faults::NONE);
    let fields = [
        "doorbell.kind",
        "doorbell.connection",
        "doorbell.sequence",
        "doorbell.ack",
        "doorbell.length",
        "doorbell.check.status",
        "doorbell.payload.length",
        "_ws.col.Info",
    ];
    let Some(rows) = ask("every_kind_with_every_field", &path, &fields) else {
        return;
    };
    let expected = [
        "1|0x1122334455667788|0|39|8|1||ACK ack 39 and 41-42 44",
        "2|0x1122334455667788|1|40|20|1|20|FRAG seq 1 ack 40 [MATCH #9 tag 0x000000000000002a] len 20",
        "3|0x1122334455667788|102|0|17|1|5|CHUNK seq 102 at 2800 of 5000 len 5",
        "4|0x1122334455667788|103|0|43|1|3|PUT seq 103 at 1200 of 3000 len 3",
        "5|0x1122334455667788|104|0|32|1|0|GET seq 104 3000 bytes len 0",
        "6|0x1122334455667788|105|0|20|1|4|DATA seq 105 at 1456 len 4",
        "7|0x1122334455667788|106|0|48|1|0|ATOMIC seq 106 compare and swap len 0",
        "8|0x1122334455667788|107|0|24|1|0|END seq 107 denied len 0",
        "9|0x1122334455667788|108|0|0|3|0|BYE seq 108 len 0",
        "10|0x1122334455667788|0|0|48|1|40|PING of 72 bytes len 40",
        "11|0x1122334455667788|0|0|48|1|40|PONG of 72 bytes len 40",
        "12|0x1122334455667788|0|0|12|1|0|CALL life 3, yours 2, answer wanted len 0",
        "13|0x1122334455667788|0|0|6|1|6|HELLO len 6",
    ];
    // Each frame leaves, and arrives.
    let twice: Vec<&str> = expected.iter().flat_map(|row| [*row, *row]).collect();
    let rows: Vec<String> = rows.iter().map(|row| row.join("|")).collect();
    assert_eq!(rows, twice);

    let own = [
        "doorbell.bitmap.missing",
        "doorbell.flag.ack",
        "doorbell.flag.urgent",
        "doorbell.flag.mac",
        "doorbell.mac",
        "doorbell.head.tag",
        "doorbell.chunk.index",
        "doorbell.op",
        "doorbell.key",
        "doorbell.address",
        "doorbell.total",
        "doorbell.offset",
        "doorbell.atomic.first",
        "doorbell.atomic.second",
        "doorbell.atomic.what",
        "doorbell.end.value",
        "doorbell.end.status",
        "doorbell.ping.token",
        "doorbell.ping.size",
        "doorbell.call.life",
        "doorbell.call.yours",
        "doorbell.call.ask",
        "doorbell.version",
    ];
    let rows = ask("every_kind_with_every_field", &path, &own).unwrap();
    let set = |row: &Vec<String>| -> Vec<String> {
        let values = own
            .iter()
            .zip(row)
            .filter(|(_, value)| !["", "0"].contains(&value.as_str()));
        let named = values.map(|(name, value)| format!("{}={value}", name.trim_start_matches("doorbell.")));
        named.collect()
    };
    let rows: Vec<String> = rows.iter().step_by(2).map(|row| set(row).join(" ")).collect();
    let target = "key=0x000000000000feed address=0x0000000000010000 total=3000";
    let expected = [
        "bitmap.missing=2 flag.ack=1".to_owned(),
        "flag.ack=1 flag.urgent=1 head.tag=0x000000000000002a".to_owned(),
        "chunk.index=2".to_owned(),
        format!("op=7 {target} offset=1200"),
        format!("op=9 {target}"),
        "op=9 offset=1456".to_owned(),
        "op=8 key=0x000000000000feed address=0x0000000000010008 atomic.first=5 atomic.second=6 atomic.what=6"
            .to_owned(),
        "op=8 end.value=77 end.status=1".to_owned(),
        "flag.mac=1 mac=6d61632d6d61632d".to_owned(),
        "ping.token=0x0000beef ping.size=72".to_owned(),
        "ping.token=0x0000beef ping.size=72".to_owned(),
        ["call.life=3", "call.yours=2", "call.ask=1"].join(" "),
        String::new(),
    ];
    let expected = expected.map(|row| format!("{row} version=1").trim_start().to_owned());
    assert_eq!(rows, expected);
}

#[test]
fn damage_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damage.pcapng");
    let names = ["_ws.col.Info", "doorbell.check.status", "_ws.expert.message"];
    let one = |effect| Faults {
        aim: Some(Aim::nth(Pick::ALL, 1, effect)),
        corrupt_part: doorbell_sim::Part::Body(24),
        ..Faults::NONE
    };
    let frag = frame(2, ACK | CRC, 1, 0, &[99; 100]);
    let mut strange = frag.clone();
    strange[18] = 99;
    let mut newer = frag.clone();
    newer[19] = 2 << 4;
    // The first remark is that of the simulator.
    let cases = [
        (
            Effect::Corrupt,
            frag.clone(),
            "FRAG seq 1 ack 0 [wrong CRC] len 100|0|fault: bits flipped,The CRC is wrong",
        ),
        (
            Effect::Truncate(50),
            frag.clone(),
            "FRAG seq 1 ack 0 [cut off]|2|fault: cut off,The frame is shorter than its head requires",
        ),
        (
            Effect::Truncate(10),
            frag.clone(),
            "too short||fault: cut off,The frame is shorter than its head requires",
        ),
        (
            Effect::Duplicate,
            strange,
            "kind 99 ack 0 [wrong CRC]|0|fault: a second copy,The CRC is wrong,No such kind",
        ),
        (
            Effect::Duplicate,
            newer,
            "FRAG seq 1|3|fault: a second copy,Another version of the format",
        ),
    ];
    for (effect, bytes, expected) in cases {
        capture(&path, &[bytes], one(effect));
        let Some(rows) = ask("damage_is_named", &path, &names) else {
            return;
        };
        assert_eq!(rows[1].join("|"), expected, "{effect:?}");
    }
}

/// What an upper layer would do with it.
#[derive(Default)]
struct Taken {
    messages: usize,
    ended: usize,
}

impl Arrivals for Taken {
    fn message(&mut self, _: PeerIndex, _: Inbound<'_>) {
        self.messages += 1;
    }

    fn completed(&mut self, _: OpId, outcome: Result<u64, OpError>) {
        assert!(outcome.is_ok());
        self.ended += 1;
    }
}

/// Two ends of the reliable layer that use all of it over a network that loses frames; every frame goes to
/// `path`.
fn real_traffic(path: &Path, frame_mac: bool) {
    let faults = Faults {
        loss: 0.1,
        ..Faults::NONE
    };
    let net = SimNet::new(
        3,
        SimConfig {
            faults,
            ..SimConfig::default()
        },
    );
    net.dump(std::fs::File::create(path).unwrap());
    let mut ends = [net.attach_datagram(), net.attach_datagram()].map(|driver| {
        let life = driver.incarnation();
        let config = BtlConfig {
            frame_mac,
            ..BtlConfig::default()
        };
        let mut btl = Btl::new(driver, config, life).unwrap();
        btl.set_key(JobKey::from_bytes([1; 32]));
        btl
    });
    let known = ends.each_ref().map(|end| (end.address(), end.incarnation()));
    let to = ends[0].open(&known[1].0, known[1].1).unwrap();
    let back = ends[1].open(&known[0].0, known[0].1).unwrap();
    let region = Region::new(64 * 1024).unwrap();
    let there = ends[1]
        .expose(Exposure::Region(region.whole()), Access::ReadWrite, Some(back))
        .unwrap();
    let mut taken = Taken::default();
    let pass = |ends: &mut [Btl<SimDatagram>; 2], taken: &mut Taken| {
        let due = ends.iter().filter_map(|end| end.next_deadline()).min();
        let soon = net.now() + Duration::from_micros(1);
        net.advance_to(due.map_or(soon, |due| due.max(soon)));
        for end in ends {
            end.progress(net.now());
            end.poll(64, taken);
        }
    };
    for n in 0..40 {
        ends[0].send_hello(&known[1].0, n, b"a hello").unwrap();
        let message = message(n);
        while ends[0]
            .send(to, &message[..16], Body::Bytes(&message[16..]))
            .is_err()
        {
            pass(&mut ends, &mut taken);
        }
        ends[1]
            .send(back, &message[..16], Body::Bytes(&[7; 20_000]))
            .unwrap();
    }
    ends[0]
        .get(
            to,
            OpId(1),
            &there,
            Landing::Region(Region::new(64 * 1024).unwrap().whole()),
        )
        .unwrap();
    ends[0]
        .put(to, OpId(2), Body::Bytes(&[3; 64 * 1024]), &there)
        .unwrap();
    let word = there.part(8, 8).unwrap();
    ends[0].atomic(to, OpId(3), &word, AtomicOp::Add(5)).unwrap();
    for _ in 0..100_000 {
        if (taken.messages, taken.ended) == (80, 3) {
            break;
        }
        pass(&mut ends, &mut taken);
    }
    assert_eq!((taken.messages, taken.ended), (80, 3));
    let by = net.now() + Duration::from_secs(1);
    loop {
        let closed = ends.each_mut().map(|end| end.close(net.now(), by));
        if closed == [true, true] {
            break;
        }
        pass(&mut ends, &mut taken);
    }
    let end = net.end_dump().unwrap();
    assert!(end.error.is_none() && end.lost == 0 && end.written > 500);
}

/// The layer that writes the frames and the script that reads them agree.
#[test]
fn everything_that_is_really_sent_is_understood() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("real.pcapng");
    let test = "everything_that_is_really_sent_is_understood";
    let fields = [
        "doorbell.kind",
        "doorbell.check.status",
        "doorbell.mac",
        "doorbell.short",
        "doorbell.bad_kind",
        "doorbell.bad_version",
        "doorbell.padding",
        "_ws.lua.error",
        "doorbell.bitmap.missing",
        "doorbell.head.tag",
        "doorbell.again",
    ];
    for mac in [false, true] {
        real_traffic(&path, mac);
        let Some(rows) = ask(test, &path, &fields) else {
            return;
        };
        let mut kinds = BTreeSet::new();
        for row in &rows {
            kinds.insert(row[0].parse::<u8>().unwrap());
            // A hello has a CRC where all others have MACs.
            let (check, seal) = if mac && row[0] != "13" {
                ("3", 16)
            } else {
                ("1", 0)
            };
            assert_eq!((row[1].as_str(), row[2].len()), (check, seal), "{row:?}");
            assert!(row[3..8].iter().all(String::is_empty), "{row:?}");
        }
        assert!(kinds.into_iter().eq((1..=11).chain([13])), "every kind was sent");
        let some = |field: usize| rows.iter().filter(|row| !row[field].is_empty()).count();
        assert!(some(8) > 0 && some(10) > 0, "gaps, and what was sent again");
        let tags: BTreeSet<&str> = rows.iter().map(|row| row[9].as_str()).collect();
        assert!((0..40).all(|tag| tags.contains(format!("0x{tag:016x}").as_str())));
    }
}

#[test]
fn a_segment_that_is_sent_again_names_the_first() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("again.pcapng");
    let frames = [1, 2, 1, 3].map(|sequence| frame(2, CRC, sequence, 0, b"x"));
    capture(&path, &frames, Faults::NONE);
    let test = "a_segment_that_is_sent_again_names_the_first";
    let Some(rows) = ask(test, &path, &["doorbell.again"]) else {
        return;
    };
    let again: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(
        again,
        ["", "", "", "", "1", "2", "", ""],
        "once where it left, once where it came"
    );
}

#[test]
fn frames_on_any_port_are_recognised_and_strangers_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("ports.pcapng");
    let mut file = Vec::new();
    let mut frames = every_kind();
    frames.push(vec![0x11; 60]);
    frames.push(b"GET / HTTP/1.1, and more than twenty-four bytes".to_vec());
    let mut long = frame(2, 0, 1, 0, b"x");
    long.push(0);
    frames.push(long);
    {
        let mut writer = Writer::new(&mut file, "a test", 0);
        let interface = writer.interface("udp:test", "");
        // Each frame in a flow of its own: what one is recognised as must not help the next.
        for (port, bytes) in (40_000..).zip(&frames) {
            writer.packet(&Packet {
                interface,
                at: Time::from_nanos(u64::from(port)),
                direction: Direction::Out,
                wrap: Wrap::Udp {
                    from: ([10, 0, 0, 1], port).into(),
                    to: ([10, 0, 0, 2], port + 1_000).into(),
                },
                bytes: &[SharedBytes::of(bytes)],
                id: 0,
                comments: &[],
            });
        }
    }
    std::fs::write(&path, file).unwrap();
    let test = "frames_on_any_port_are_recognised_and_strangers_are_not";
    let Some(rows) = ask(test, &path, &["doorbell.kind"]) else {
        return;
    };
    let kinds: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(
        kinds,
        [
            "1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12", "13", "", "", ""
        ]
    );
}

/// Random and mutated bytes: the script must not fail on any (tshark shows that as "Lua Error").
#[test]
fn no_frame_is_too_strange() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("strange.pcapng");
    let mut random = doorbell_sim::Random::new(1);
    let mut frames = Vec::new();
    for n in 0..5_000_usize {
        let mut bytes = every_kind().swap_remove(n % 11);
        for _ in 0..=random.below(4) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next_u64() as u8;
        }
        bytes.truncate(24.max(random.below(2 * bytes.len() as u64) as usize));
        frames.push(bytes);
    }
    capture(&path, &frames, Faults::NONE);
    let Some(rows) = ask(
        "no_frame_is_too_strange",
        &path,
        &["doorbell.kind", "_ws.lua.error"],
    ) else {
        return;
    };
    assert_eq!(rows.len(), 10_000);
    let bad = rows
        .iter()
        .position(|row| row[0].is_empty() || !row[1].is_empty());
    assert_eq!(bad.map(|at| (at, &rows[at])), None);
}
